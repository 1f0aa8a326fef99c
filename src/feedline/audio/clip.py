"""Decides which frames of a file are needed before any of them is decoded, and makes the clip from them.

Transforms only change a `Clip`: its seconds, its rate, its channels. The result is always what resampling the whole
file and cutting the clip out of it would give. For that, the frames that are decoded begin where frames of both rates
coincide, and include a margin of as many frames as the filter of the resampler reaches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from feedline.audio.decoding import AudioInfo, Samples
from feedline.errors import BadOption
from feedline.system.optional import require
from feedline.system.sizes import check_size, most_bytes

_MARGIN = 256
"""Frames at the lower of both rates. Measured: with 128, clips already equal the whole file within rounding."""


class Sound(Protocol):
    """What clips are made of: an open file, or an array."""

    name: str

    @property
    def info(self) -> AudioInfo:
        """Rate, channels and frames."""

    def read(self, start: int, stop: int) -> Samples:
        """Return these frames, with the axes frame and channel."""


@dataclass
class Clip:
    """The part of a sound that is wanted, and its form."""

    info: AudioInfo
    """Of the sound."""
    rate: int
    quality: str = "HQ"
    mono: bool = False
    seconds: float | None = None
    """None for all of it."""
    position: float = 0.0
    """Where in the sound the clip lies: 0 for the earliest place, below 1 for the latest."""
    short: str = "pad"
    """What becomes of a sound that is shorter than the clip."""

    @classmethod
    def of(cls, info: AudioInfo) -> Clip:
        """Return the clip that is the whole sound."""
        return cls(info, info.rate)

    @property
    def total(self) -> int:
        """The number of frames of the whole sound at the rate of the clip: at least 1, otherwise as soxr rounds it.

        The order of the operations is soxr's: halves are rounded up or down, depending on both rates.
        """
        return max(1, int(self.info.frames / (self.info.rate / self.rate) + 0.5))

    @property
    def frames(self) -> int:
        """The number of frames of the clip."""
        if self.seconds is None:
            return self.total
        wanted = max(1, round(self.seconds * self.rate))
        return min(wanted, self.total) if self.short == "keep" else wanted

    def window(self) -> tuple[int, int]:
        """Return the first frame of the clip, and the one after the last that the sound has, at the clip's rate."""
        room = max(self.total - self.frames, 0)
        start = min(int(self.position * (room + 1)), room)
        return start, min(start + self.frames, self.total)

    def needed(self) -> tuple[int, int]:
        """Return the window of frames to decode, at the rate of the sound."""
        start, stop = self.window()
        source = self.info.rate
        if source == self.rate:
            return start, stop
        margin = _MARGIN * source // min(source, self.rate)
        step = source // math.gcd(source, self.rate)  # frames of both rates coincide once in so many
        first = max(0, start * source // self.rate - margin) // step * step
        return first, min(self.info.frames, -(-stop * source // self.rate) + margin)


def render(sound: Sound, clip: Clip) -> Samples:
    """Make a clip: decode what it needs, mix, resample, cut, and pad or repeat. Returns channel and frame.

    Raises CorruptSource: the sound is damaged, or the clip takes more memory than `$FEEDLINE_MAX_SAMPLE_BYTES` allows.
    """
    channels = 1 if clip.mono else clip.info.channels
    check_size(lambda: f"A clip of {sound.name}", clip.frames * channels * 4, limit=most_bytes())
    first, last = clip.needed()
    samples = sound.read(first, last)
    if clip.mono and samples.shape[1] > 1:
        samples = samples.mean(axis=1, keepdims=True, dtype=np.float32)
    if clip.rate != clip.info.rate:
        soxr = require("soxr", extra="audio", purpose="Resampling audio")
        start, stop = clip.window()
        begin = first * clip.rate // clip.info.rate  # exact: both rates have a frame here
        least = -(-clip.info.rate // clip.rate)  # soxr returns nothing for less than half a frame
        if len(samples) < least:
            samples = np.pad(samples, ((0, least - len(samples)), (0, 0)))
        samples = soxr.resample(samples, clip.info.rate, clip.rate, quality=clip.quality)[start - begin : stop - begin]
    missing = clip.frames - len(samples)
    if missing > 0 and clip.short == "repeat":
        samples = np.resize(samples, (clip.frames, channels))  # which repeats the rows
    elif missing > 0:
        samples = np.pad(samples, ((0, missing), (0, 0)))
    return np.ascontiguousarray(samples.T)


class ArraySound:
    """A sound that is already decoded.

    Args:
        samples: an array with the axes channel and frame, or frame.
        rate: None if it is not known.

    Raises:
        BadOption: the array holds no sound, or `rate` is None: see `Compose`.
    """

    name = "an array"

    def __init__(self, samples: np.ndarray[tuple[int, ...], np.dtype[np.generic]], rate: int | None) -> None:
        if samples.dtype.kind != "f" or samples.ndim not in (1, 2) or not samples.size:
            raise BadOption(
                f"A transform of feedline.audio was given {samples.dtype} of shape {samples.shape}. It takes the bytes "
                "or the path of an audio file, or an array of floats with the axes channel and frame."
            )
        if rate is None:
            raise BadOption(
                "The rate of an array of sound is not known, and this transform needs it. Give it as "
                "Compose(..., rate=16000), or give the transform the audio file itself."
            )
        self._samples = np.atleast_2d(samples).astype(np.float32, copy=False)
        self.info = AudioInfo("array", rate, *self._samples.shape)

    def read(self, start: int, stop: int) -> Samples:
        return self._samples[:, start:stop].T.copy()  # functions may change what they are given, in place
