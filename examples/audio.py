"""Audio: random clips out of long files, resampled, as spectrograms.

    python examples/audio.py

Shows: `feedline.audio.AudioFolder` with one class per folder, and one pipeline for training. `RandomClip` chooses half
a second of each file from its header, and only that is decoded. `Resample` brings files of different rates to one, and
`Mono` mixes their channels. A function in the same pipeline changes the volume at random, with `feedline.rng()`.
`LogMel` makes spectrograms of whole batches as `device_transform=`, which runs on the device of the batch: with
`device="cuda"`, it runs on the GPU, ahead of the training loop. Validation uses `CenterClip`, so that it always gets
the same clips.

Look at: how much of the audio an epoch "decodes", the loss of each "epoch", and the "accuracy" on files that were not
used for training.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import nn

import feedline
from feedline import DataLoader, audio

RATE, CLIP_S = 8000, 0.5


def write_sounds(folder: Path, count: int) -> None:
    """Write sounds of two to five seconds whose pitch falls or rises again and again, at two different rates."""
    rng = np.random.default_rng(0)
    for number in range(count):
        name = ("falling", "rising")[number % 2]
        rate, channels = ((RATE, 1), (22_050, 2))[number // 2 % 2]
        moment = np.arange(int(rate * rng.uniform(2, 5))) / rate
        phase = moment / 0.4 % 1  # of a chirp that lasts 0.4 s
        low, high = rng.uniform(300, 600), rng.uniform(1200, 2400)
        pitch = low + (high - low) * (phase if name == "rising" else 1 - phase)
        sound = 0.3 * np.sin(2 * np.pi * np.cumsum(pitch) / rate)
        noisy = sound + rng.normal(0, 0.1, (channels, len(moment)))
        (folder / name).mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name / f"{number:04d}.flac", noisy.clip(-1, 1).T, rate)


def random_volume(sound: np.ndarray) -> np.ndarray:
    return sound * np.float32(feedline.rng().uniform(0.5, 1.5))


class Classifier(nn.Module):
    """Convolutions over time, and their mean."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(bands, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.ReLU()
        )
        self.output = nn.Linear(32, 2)

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        """Return the scores of both classes."""
        scores: torch.Tensor = self.output(self.convolutions(spectrum[:, 0]).mean(2))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    one_form = [audio.Resample(RATE), audio.Mono()]
    spectrum = audio.LogMel(RATE, n_fft=256, hop_length=128, n_mels=40, floor=1e-6)
    with tempfile.TemporaryDirectory() as name:
        write_sounds(Path(name), 240)
        # Two datasets of the same files: of one, random clips are taken; of the other, always the same ones.
        files = audio.AudioFolder(name, transform=audio.Compose([audio.RandomClip(CLIP_S), *one_form, random_volume]))
        always = audio.AudioFolder(name, transform=audio.Compose([audio.CenterClip(CLIP_S), *one_form]))
        train, _ = feedline.split(files, [0.8, 0.2], seed=0)
        _, test = feedline.split(always, [0.8, 0.2], seed=0)
        seconds = audio.durations(train)
        print(f"an epoch decodes {CLIP_S * len(train):.0f} s of {seconds.sum():.0f} s")

        # Any: batches of tensors.
        common: dict[str, Any] = {"device": options.device, "device_transform": spectrum}
        loader = DataLoader(train, 16, shuffle=True, num_workers=2, seed=0, **common)
        model = Classifier(spectrum.n_mels).to(options.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for epoch in range(options.epochs):
            losses = []
            for sounds, labels in loader:
                loss = nn.functional.cross_entropy(model(sounds), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {np.mean(losses):.2f}")

        with torch.no_grad():
            right = sum(
                int((model(sounds).argmax(1) == labels).sum()) for sounds, labels in DataLoader(test, 48, **common)
            )
        print(f"accuracy: {right / len(test):.0%} of {len(test)} files")
    assert right / len(test) > 0.8


if __name__ == "__main__":
    main()
