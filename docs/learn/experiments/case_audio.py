"""What does a clip of audio cost, and which part of it?

Run it from the root of the repository (about 20 seconds; it needs SciPy, and writes 76 MB into a temporary folder):

    python docs/learn/experiments/case_audio.py

It prints one JSON object. `ms` is CPU time per clip: medians, with the ways of getting a clip taken in turns, files in
the page cache. CPU time is what a busy machine disturbs least. `padding` is the share of a batch that is padding.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import resample_poly

import feedline
from feedline.samplers import LengthBucketBatchSampler

RATE, SECONDS, FILES = 44_100, 60, 12
WANTED = 16_000
CLIP_S = 2


def write_files(folder: Path) -> list[Path]:
    """Write a minute of noise into each file: 16 bits, one channel, 5.3 MB."""
    generator = np.random.default_rng(0)
    paths = []
    for number in range(FILES):
        samples = (generator.standard_normal(RATE * SECONDS) * 3000).astype("<i2")
        paths.append(folder / f"{number:03d}.wav")
        with wave.open(str(paths[-1]), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
    return paths


def read(path: Path, start: int = 0, count: int | None = None) -> np.ndarray:
    """Return `count` frames from `start` on, as floats."""
    with wave.open(str(path), "rb") as file:
        file.setpos(start)
        data = file.readframes(file.getnframes() if count is None else count)
    return np.frombuffer(data, "<i2").astype(np.float32) / 32768


def resampled(samples: np.ndarray) -> np.ndarray:
    """Return the samples at 16 kHz: 44,100 x 160 / 441."""
    return resample_poly(samples, 160, 441).astype(np.float32)


def costs(paths: list[Path]) -> dict[str, float]:
    """Time the ways of getting one clip."""
    generator = np.random.default_rng(1)
    whole, clip = RATE * SECONDS, RATE * CLIP_S
    store = np.lib.format.open_memmap(
        paths[0].parent / "all.npy", "w+", dtype=np.int16, shape=(len(paths), WANTED * SECONDS)
    )
    for row, path in zip(store, paths, strict=True):
        row[:] = resampled(read(path)) * 32767
    store.flush()
    stored = np.load(paths[0].parent / "all.npy", mmap_mode="r")

    def crop(samples: np.ndarray, length: int) -> np.ndarray:
        start = int(generator.integers(len(samples) - length))
        return samples[start : start + length]

    def from_store(path: Path) -> np.ndarray:
        return crop(stored[int(path.stem)], WANTED * CLIP_S).astype(np.float32) / 32767

    ways: dict[str, Callable[[Path], np.ndarray]] = {
        "read_all_resample_crop": lambda path: crop(resampled(read(path)), WANTED * CLIP_S),
        "read_all_crop": lambda path: crop(read(path), clip),
        "seek_crop": lambda path: read(path, int(generator.integers(whole - clip)), clip),
        "seek_crop_resample": lambda path: resampled(read(path, int(generator.integers(whole - clip)), clip)),
        "stored_at_16k_crop": from_store,
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for path in paths:
            for name, way in ways.items():
                begin = time.thread_time()
                made = way(path)
                taken[name].append((time.thread_time() - begin) * 1e3)
                if len(made) != clip and abs(len(made) - WANTED * CLIP_S) > 1:
                    raise AssertionError(f"{name} gave {len(made)} samples")
    return {name: float(f"{statistics.median(values):.3g}") for name, values in taken.items()}


def padding() -> dict[str, Any]:
    """Count the padding of batches of utterances whose lengths differ, by sampler."""
    generator = np.random.default_rng(2)
    lengths = np.clip(generator.lognormal(1.3, 0.6, 4000), 0.5, 20)

    def share(batches: list[np.ndarray]) -> float:
        padded = sum(len(batch) * lengths[batch].max() for batch in batches)
        return round(1 - lengths.sum() / padded, 3)

    order = generator.permutation(len(lengths))
    fixed = 1 - lengths.sum() / (len(lengths) * lengths.max())
    bucketed = [np.asarray(batch) for batch in LengthBucketBatchSampler(lengths, 32, seed=0)]
    return {
        "median_s": round(float(np.median(lengths)), 1),
        "longest_s": round(float(lengths.max()), 1),
        "pad_to_the_longest_of_all": round(float(fixed), 3),
        "random_batches_of_32": share(np.array_split(order, len(order) // 32)),
        "length_buckets": share(bucketed),
    }


def main() -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        paths = write_files(Path(name))
        found = {
            "machine": {"python": platform.python_version(), "numpy": np.__version__, "feedline": feedline.__version__},
            "ms": costs(paths),
            "padding": padding(),
        }
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
