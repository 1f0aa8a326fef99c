"""Audio: WAV files of different lengths, padded in batches of similar length.

    python examples/audio.py

Shows: `FileDataset` with a function of your own that reads a file, here with Python's `wave`. The lengths come from
the headers, without reading the sound, and `LengthBucketBatchSampler` makes batches of similar length from them.
`feedline.collate.pad` pads the sound and hands on the lengths, which the model needs to leave the padding out of its
mean. The spectrogram is made of whole batches in `device_transform=`, which runs where the batch goes: give the
loader `device="cuda"`, and it runs on the GPU, ahead of the training loop. The volume is changed at random in the
workers, with `feedline.rng()`.

Look at: the "padding" with and without buckets, the loss of each "epoch", and the "accuracy" on files that were not
trained on.
"""

from __future__ import annotations

import argparse
import tempfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import feedline
from feedline import DataLoader, collate
from feedline.datasets import FileDataset
from feedline.samplers import LengthBucketBatchSampler

RATE, WINDOW, HOP = 8000, 256, 128


def write_sounds(folder: Path, count: int) -> None:
    """Write sounds of a quarter of a second to two seconds whose pitch falls or rises."""
    rng = np.random.default_rng(0)
    for number in range(count):
        name = ("falling", "rising")[number % 2]
        length = int(RATE * rng.uniform(0.25, 2))
        low, high = rng.uniform(300, 600), rng.uniform(1200, 2400)
        pitch = np.linspace(low, high, length) if name == "rising" else np.linspace(high, low, length)
        sound = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) * 0.3 + rng.normal(0, 0.1, length)
        (folder / name).mkdir(parents=True, exist_ok=True)
        with wave.open(str(folder / name / f"{number:04d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes((sound.clip(-1, 1) * 32767).astype("<i2").tobytes())


def read_sound(path: str) -> np.ndarray:
    """Return the sound of a file from -1 to 1, at a random volume."""
    with wave.open(path) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    return sound * np.float32(feedline.rng().uniform(0.5, 1.5))


def length_of(path: str) -> int:
    with wave.open(path) as file:
        return file.getnframes()


def spectrogram(batch: dict[str, Any]) -> dict[str, Any]:
    """Add the logarithm of the spectrogram of each sound: frequencies, and a step for every `HOP` samples."""
    sound = batch["data"]
    window = torch.hann_window(WINDOW, device=sound.device)
    spectrum = torch.stft(sound, WINDOW, HOP, window=window, return_complex=True).abs()
    return {**batch, "spectrum": (spectrum + 1e-3).log(), "steps": batch["length"] // HOP + 1}


class Classifier(nn.Module):
    """Convolutions over time, and their mean without the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(WINDOW // 2 + 1, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.ReLU()
        )
        self.output = nn.Linear(32, 2)

    def forward(self, spectrum: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """Return the scores of both classes."""
        x = self.convolutions(spectrum)
        is_sound = torch.arange(x.shape[2], device=x.device) < steps[:, None]
        scores: torch.Tensor = self.output((x * is_sound[:, None]).sum(2) / steps[:, None])
        return scores


def padding_of(loader: DataLoader[Any, Any]) -> float:
    batches = [(batch["data"].numel(), int(batch["length"].sum())) for batch in loader]
    padded, real = np.sum(batches, axis=0)
    return float(1 - real / padded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        write_sounds(Path(name), 300)
        sounds = FileDataset(name, ["data", "label"], extensions=".wav", labels="folder", read=read_sound)
        lengths = np.array([length_of(path) for path, _ in sounds.samples])
        train, test = feedline.split(sounds, [0.8, 0.2], seed=0)
        pad = collate.pad({"data": 0.0}, lengths="length")
        buckets = LengthBucketBatchSampler(lengths[train.indices], 16, seed=0)
        loader = DataLoader(
            train,
            batch_sampler=buckets,
            collate_fn=pad,
            num_workers=2,
            seed=0,
            device=options.device,
            device_transform=spectrogram,
        )
        shuffled = DataLoader(train, 16, shuffle=True, seed=0, collate_fn=pad)
        plain, bucketed = padding_of(shuffled), padding_of(loader)
        print(f"padding: {plain:.0%} shuffled, {bucketed:.0%} in buckets")

        model = Classifier().to(options.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for epoch in range(options.epochs):
            losses = []
            for batch in loader:
                loss = nn.functional.cross_entropy(model(batch["spectrum"], batch["steps"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {np.mean(losses):.2f}")

        tested = DataLoader(test, 60, collate_fn=pad, device=options.device, device_transform=spectrogram)
        with torch.no_grad():
            right = sum(
                int((model(batch["spectrum"], batch["steps"]).argmax(1) == batch["label"]).sum()) for batch in tested
            )
        print(f"accuracy: {right / len(test):.0%} of {len(test)} files")
    assert bucketed < plain / 2
    assert right / len(test) > 0.8


if __name__ == "__main__":
    main()
