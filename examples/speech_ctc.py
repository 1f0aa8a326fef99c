"""Speech: recordings of different lengths, in batches of similar duration, with CTC.

    python examples/speech_ctc.py

Shows: a `FileDataset` of FLAC files with transcripts. `feedline.audio.durations` reads the durations from the headers,
and `TokenBudgetBatchSampler` uses them to fill batches up to a budget of seconds, padding included. `collate.pad` pads
recordings and transcripts, and adds their lengths. `LogMel` runs in `device_transform=`, on the device of the batch;
its method `steps` turns lengths in frames into lengths in steps, which the CTC loss and `audio.length_mask` need. One
file is damaged: `on_error="skip"` skips it. The "speech" is synthetic, a tone for each letter, so that a small model
learns it in seconds.

Look at: the "padding" with and without buckets, how many files were "skipped", the loss of each "epoch", and the share
of "letters" that were recognised.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import nn

import feedline
from feedline import DataLoader, audio, collate
from feedline.datasets import FileDataset
from feedline.samplers import TokenBudgetBatchSampler

RATE = 8000
PITCHES = {letter: 300 * 1.35**place for place, letter in enumerate("abcdef")}
LETTERS = "_" + "".join(PITCHES)
"""The first one is the blank of CTC."""
SPECTRUM = audio.LogMel(RATE, n_fft=256, hop_length=160, n_mels=24, floor=1e-6)


def sung(word: str, rng: np.random.Generator) -> np.ndarray:
    """Return a word, each letter as a tone of its pitch and of random length, with a pause after it."""
    parts = []
    for letter in word:
        moment = np.arange(int(rng.uniform(0.06, 0.3) * RATE)) / RATE
        tone = 0.3 * np.sin(2 * np.pi * PITCHES[letter] * rng.uniform(0.96, 1.04) * moment)
        parts += [tone, np.zeros(int(0.06 * RATE))]
    sound = np.concatenate(parts)
    noisy: np.ndarray = (sound + rng.normal(0, 0.02, len(sound))).astype(np.float32)
    return noisy


def write_speech(folder: Path, count: int) -> dict[str, str]:
    """Write words of one to ten letters, the last file damaged; return the transcript of each file."""
    rng = np.random.default_rng(0)
    texts = {}
    for number in range(count):
        text = "".join(rng.choice(list(PITCHES), rng.integers(1, 11)))
        path = folder / f"{number:04d}.flac"
        soundfile.write(path, sung(text, rng), RATE)
        texts[str(path)] = text
    path.write_bytes(path.read_bytes()[:200])
    return texts


class Transcribed:
    """Adds the transcript to the sound of a file."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        self.sound = audio.Compose([audio.Resample(RATE), audio.Mono()]).on("audio")

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        text = self.texts[sample["audio"]]
        letters = np.array([LETTERS.index(letter) for letter in text])
        return {**self.sound(sample), "letters": letters}


def spectra(batch: dict[str, Any]) -> dict[str, Any]:
    """Turn the sounds of a batch into spectra, and their lengths into steps."""
    steps = SPECTRUM.steps(batch["audio_lengths"])
    return {**batch, "audio": SPECTRUM(batch["audio"])[:, 0], "steps": steps}


class Recogniser(nn.Module):
    """Convolutions over time that return the score of each letter at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(SPECTRUM.n_mels, 64, 5, padding=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, len(LETTERS), 5, padding=2),
        )

    def forward(self, spectrum: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of probabilities; the padding of a batch has no influence on them."""
        mask = audio.length_mask(steps, spectrum.shape[2])
        scores = self.layers(((spectrum + 6) / 4) * mask[:, None])
        return scores.log_softmax(1).permute(2, 0, 1)


def words_of(scores: torch.Tensor, steps: torch.Tensor) -> list[str]:
    """Return the likeliest words: without repeated letters, and without blanks."""
    words = []
    for best, count in zip(scores.argmax(2).T.tolist(), steps.tolist(), strict=True):
        signs = [one for place, one in enumerate(best[:count]) if place == 0 or one != best[place - 1]]
        words.append("".join(LETTERS[one] for one in signs if one))
    return words


def padding_of(seconds: np.ndarray, batches: list[list[int]]) -> float:
    padded = sum(len(batch) * seconds[batch].max() for batch in batches)
    return float(1 - seconds.sum() / padded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        texts = write_speech(Path(name), 300)
        dataset = FileDataset(name, {"audio": "path"}, extensions=".flac", transform=Transcribed(texts))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", feedline.errors.DataWarning)  # it says that one header is damaged
            seconds = audio.durations(dataset, damaged=1.0)
        sampler = TokenBudgetBatchSampler(seconds, 16, seed=0)
        shuffled = np.array_split(np.random.default_rng(0).permutation(len(dataset)), len(sampler))
        plain, bucketed = padding_of(seconds, [part.tolist() for part in shuffled]), padding_of(seconds, list(sampler))
        print(f"padding: {plain:.0%} shuffled, {bucketed:.0%} in buckets")

        loader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=collate.pad({"audio": 0.0, "letters": 0}, axis=-1),
            num_workers=2,
            seed=0,
            on_error="skip",
            device=options.device,
            device_transform=spectra,
        )
        model = Recogniser().to(options.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for epoch in range(options.epochs):
            losses = []
            for batch in loader:
                scores = model(batch["audio"], batch["steps"])
                loss = nn.functional.ctc_loss(scores, batch["letters"], batch["steps"], batch["letters_lengths"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {np.mean(losses):.2f}")
        print(f"skipped: {len(loader.faults)} of {len(dataset)} files")

        right = total = 0
        model.eval()
        with torch.no_grad():
            for batch in loader:
                found = words_of(model(batch["audio"], batch["steps"]), batch["steps"])
                for word, letters, count in zip(found, batch["letters"], batch["letters_lengths"], strict=True):
                    text = "".join(LETTERS[one] for one in letters[:count].tolist())
                    right += sum(a == b for a, b in zip(word, text, strict=False)) if len(word) == len(text) else 0
                    total += len(text)
        print(f"letters: {right / total:.0%} of {total} recognised")
    assert bucketed < plain / 2
    assert right / total > 0.7


if __name__ == "__main__":
    main()
