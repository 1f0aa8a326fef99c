"""Sounds and audio files for the tests."""

from __future__ import annotations

import functools
import io
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("soxr")

RATE = 16_000
Sound = NDArray[np.float32]

# The largest difference of a value decoded after a seek, by format: mpg123 then rounds in another order.
FORMATS = {"WAV": 0.0, "FLAC": 0.0, "OGG": 0.0, "AIFF": 0.0, "MP3": 1e-6}


@functools.cache
def sound(seconds: float = 3.0, channels: int = 1, rate: int = RATE) -> Sound:
    """Return a rising tone with noise, different in every channel; the axes are channel and frame."""
    moment = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(channels).normal(0, 0.05, (channels, len(moment)))
    tones = [0.3 * np.sin(2 * np.pi * (200 + 300 * channel + 40 * moment) * moment) for channel in range(channels)]
    made: Sound = (np.stack(tones) + noise).astype(np.float32)
    made.flags.writeable = False
    return made


def encoded(samples: Sound, format_: str = "FLAC", rate: int = RATE, subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", rate, len(samples), subtype, format=format_) as sound_file:
        for start in range(0, samples.shape[1], rate):  # libsndfile crashes if it gets minutes of Vorbis in one call
            sound_file.write(samples.T[start : start + rate])
    return file.getvalue()


def decoded(data: bytes) -> Sound:
    """Return the whole sound as soundfile alone decodes it."""
    samples, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    made: Sound = np.ascontiguousarray(samples.T)
    return made


def write_folder(folder: Path, counts: dict[str, int], seconds: float = 1.0, step: float = 1 / 8) -> Path:
    """Write files of different lengths and contents for each class."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            samples = np.roll(sound(seconds + step * number, 1), 100 * number)
            (folder / name / f"{number}.flac").write_bytes(encoded(samples))
    return folder
