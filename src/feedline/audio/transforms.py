"""Transforms that choose what is decoded: each draws random numbers and touches no sound."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.audio.clip import Clip
from feedline.audio.compose import ClipTransform
from feedline.randomness.scope import rng
from feedline.system.options import checked_choice, checked_count, checked_number

_SHORT = ("pad", "repeat", "keep")
_QUALITIES = ("LQ", "MQ", "HQ", "VHQ")


@dataclass(frozen=True)
class _Cut(ClipTransform):
    seconds: float
    short: str = "pad"
    cuts = True

    def __post_init__(self) -> None:
        checked_number("seconds", self.seconds, above=0)
        checked_choice("short", self.short, _SHORT)


@dataclass(frozen=True)
class RandomClip(_Cut):
    """Cut a clip out of a random place of each sound. Of a file, only this clip is decoded.

    Args:
        seconds: the length of the clip.
        short: for sounds that are shorter: "pad" to add silence at the end, "repeat" to repeat the sound, "keep" to
            return it as it is.

    Raises:
        BadOption: an argument is invalid.

    Example:
        >>> import numpy as np
        >>> from feedline import audio
        >>> clip = audio.Compose([audio.RandomClip(0.5, short="repeat")], rate=16000)
        >>> clip(np.zeros((1, 64000), np.float32)).shape
        (1, 8000)
    """

    def draw(self, clip: Clip) -> None:
        clip.seconds, clip.short, clip.position = self.seconds, self.short, rng().random()


@dataclass(frozen=True)
class CenterClip(_Cut):
    """Cut a clip out of the middle of each sound, as for validation.

    Args:
        seconds: the length of the clip.
        short: for sounds that are shorter: see `RandomClip`.

    Raises:
        BadOption: an argument is invalid.

    Example:
        >>> import numpy as np
        >>> from feedline import audio
        >>> middle = audio.Compose([audio.CenterClip(0.5)], rate=4)
        >>> middle(np.arange(6, dtype=np.float32)).tolist()
        [[2.0, 3.0]]
    """

    def draw(self, clip: Clip) -> None:
        clip.seconds, clip.short, clip.position = self.seconds, self.short, 0.5


@dataclass(frozen=True)
class Resample(ClipTransform):
    """Convert each sound to one rate, with soxr.

    Args:
        rate: frames per second.
        quality: "LQ", "MQ", "HQ" or "VHQ" of soxr. "HQ" keeps 20 bits.

    Raises:
        BadOption: an argument is invalid.

    Example:
        >>> import numpy as np
        >>> from feedline import audio
        >>> convert = audio.Compose([audio.Resample(16000)], rate=44100)
        >>> convert(np.zeros((2, 44100), np.float32)).shape
        (2, 16000)
    """

    rate: int
    quality: str = "HQ"
    resamples = True

    def __post_init__(self) -> None:
        checked_count("rate", self.rate)
        checked_choice("quality", self.quality, _QUALITIES)

    def draw(self, clip: Clip) -> None:
        clip.rate, clip.quality = self.rate, self.quality


@dataclass(frozen=True)
class Mono(ClipTransform):
    """Mix all channels into one: their mean.

    Example:
        >>> import numpy as np
        >>> from feedline import audio
        >>> mix = audio.Compose([audio.Mono()], rate=16000)
        >>> mix(np.array([[1, 2], [3, 4]], np.float32)).tolist()
        [[2.0, 3.0]]
    """

    def draw(self, clip: Clip) -> None:
        clip.mono = True
