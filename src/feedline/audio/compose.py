"""Sequences of audio transforms. Clips, resampling and mixing are decided before the file is decoded.

A pipeline consists of stages. Adjacent transforms that only change the clip (`ClipTransform.draw`) form one stage,
which decodes only the frames that it needs. Other transforms, such as `LogMel` or a function of the user's, are stages
of their own, which receive an array.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from feedline.audio.clip import ArraySound, Clip, render
from feedline.audio.containers import format_of
from feedline.audio.decoding import AudioFile, Samples
from feedline.errors import BadOption
from feedline.images.medium import Medium, MediumPipeline, is_encoded
from feedline.system.optional import is_tensor, require
from feedline.system.options import checked_count

_STORED = ({"bytes", "path"}, {"array", "sampling_rate"}, {"array", "sampling_rate", "path"})
"""The keys of a sound as Hugging Face stores it: the file, or what it decoded to."""


def is_file(value: object) -> bool:
    """True for an audio file: its bytes, its path as an `os.PathLike`, or what Hugging Face stores of it."""
    if is_encoded(value):
        return format_of(bytes(value[:12])) is not None
    return isinstance(value, os.PathLike) or is_stored(value)


# Any: tensors are recognised without importing torch.
def is_sound(value: Any) -> bool:
    """True for an array or tensor of floats, which may be sound."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and value.ndim > 0
    return is_tensor(value) and value.is_floating_point() and value.ndim > 0


def is_stored(value: object) -> bool:
    """True for a sound as Hugging Face stores it."""
    return isinstance(value, Mapping) and value.keys() in _STORED


SOUND = Medium(
    "sound",
    "sound",
    (is_file, is_sound),
    is_stored,
    "Choose the one to transform with .on(name), or leave out others with fields=. Text is not taken for a path unless "
    ".on(name) says so.",
)


# Any, throughout: a sound is a file or an array; a sample has one among its fields.
class AudioTransform:
    """A transform of `feedline.audio`.

    Called with a sound, or with a sample that contains one, it returns the same with the sound transformed.
    """

    def __call__(self, sample: object) -> Any:
        return Compose([self])(sample)


class ClipTransform(AudioTransform, ABC):
    """A transform that only decides what is decoded."""

    cuts = False
    """True if it chooses a part of the sound. A second such transform in a pipeline works on the first one's result."""
    resamples = False

    @abstractmethod
    def draw(self, clip: Clip) -> None:
        """Change the clip, with random numbers of `feedline.rng()`."""


class ArrayTransform(AudioTransform, ABC):
    """A transform of decoded sound into something that is not sound: a spectrogram."""

    @abstractmethod
    def transform(self, samples: object, rate: int | None) -> Any:
        """Return the transformed sound.

        Args:
            samples: an array or a tensor whose last axis is time.
            rate: its rate; None if it is not known.
        """


class Compose(MediumPipeline):
    """A sequence of audio transforms.

    It takes an audio file (its bytes, its path, or a file object), or an array of floats with the axes channel and
    frame; or a sample with one of these in one of its fields. Sources accept it as `transform=`. The result is a
    float32 array with the axes channel and frame, unless a transform changes that.

    `RandomClip`, `CenterClip`, `Resample` and `Mono` that follow each other are done together: the header says which
    frames they need, and only these are decoded. Their order does not matter; the clip is always cut out of the
    resampled sound.

    Args:
        transforms: transforms of `feedline.audio`, torchaudio or audiomentations, or functions that take an array with
            the axes channel and frame.
        rate: the rate of sounds that are given as arrays. Audio files declare their own.

    Raises:
        BadOption: something in the list is not a transform, or a clip comes after `LogMel`.

    Example:
        >>> import io, numpy as np, soundfile
        >>> from feedline import audio
        >>> file = io.BytesIO()
        >>> soundfile.write(file, np.zeros((44100, 2)), 44100, format="FLAC")
        >>> pipeline = audio.Compose([audio.RandomClip(0.5), audio.Resample(16000), audio.Mono()])
        >>> sound, label = pipeline((file.getvalue(), 7))
        >>> sound.shape, sound.dtype.name, label
        ((1, 8000), 'float32', 7)
    """

    _medium = SOUND

    def __init__(self, transforms: Iterable[object], *, rate: int | None = None) -> None:
        self.transforms = tuple(_flat(transforms))
        self._stages = _stages_of(self.transforms)
        self.rate = None if rate is None else checked_count("rate", rate)

    def _changed(self, value: object) -> object:
        return self.apply(value)[0]

    def apply(self, sound: Any) -> tuple[Any, int | None]:
        """Return the transformed sound, and its rate; None for an array whose rate is not known.

        Args:
            sound: an audio file or an array, without other fields.
        """
        rate = self.rate
        if is_stored(sound):
            rate = sound.get("sampling_rate", rate)
            sound = _floats(sound["array"]) if "array" in sound else sound["bytes"] or sound["path"]
        for one in self._stages:
            sound, rate = one(sound, rate)
        return sound, rate

    def __repr__(self) -> str:
        rate = "" if self.rate is None else f", rate={self.rate}"
        return f"Compose([{', '.join(map(repr, self.transforms))}]{rate}){self._shown_field()}"


def audio_transform(transform: object) -> Compose | None:
    """Return a transform of `feedline.audio` as a pipeline; None if it is anything else."""
    if isinstance(transform, AudioTransform):
        return Compose([transform])
    return transform if isinstance(transform, Compose) else None


Stage = Callable[[object, int | None], tuple[object, int | None]]
"""Takes a sound and its rate, and returns both."""


def _flat(transforms: Iterable[object]) -> Iterable[Callable[..., object]]:
    for transform in transforms:
        if isinstance(transform, Compose):
            if transform.rate is not None or transform.field is not None:
                raise BadOption(f"{transform!r} is inside another Compose. Pass rate= to that, and call its .on().")
            yield from transform.transforms
        elif callable(transform):
            yield transform
        else:
            raise BadOption(f"{transform!r} is not a transform: it cannot be called with a sound.")


def _stages_of(transforms: Iterable[Callable[..., object]]) -> list[Stage]:
    stages: list[Stage] = [_Fused()]  # decodes, even if nothing follows
    spectrum: object = None
    for transform in transforms:
        if isinstance(transform, ClipTransform) and spectrum is not None:
            raise BadOption(f"{transform!r} comes after {spectrum!r}, when there is no sound any more. Put it before.")
        if isinstance(transform, ArrayTransform):
            spectrum = transform
        if not isinstance(transform, ClipTransform):
            stages.append(_Changed(transform))
            continue
        last = stages[-1]
        if not isinstance(last, _Fused) or not last.takes(transform):
            last = _Fused()
            stages.append(last)
        last.transforms.append(transform)
    return stages


class _Fused:
    """Transforms that only change the clip: they are drawn first, and then only the clip is decoded."""

    def __init__(self) -> None:
        self.transforms: list[ClipTransform] = []

    def takes(self, transform: ClipTransform) -> bool:
        return not any(
            (one.cuts and transform.cuts) or (one.resamples and transform.resamples) for one in self.transforms
        )

    def __call__(self, sound: Any, rate: int | None) -> tuple[object, int | None]:
        sound = array_of(sound)
        if isinstance(sound, np.ndarray) and not is_encoded(sound):
            if not self.transforms and rate is None and sound.dtype.kind == "f":
                return sound.copy(), rate  # nothing is to be done that needs the rate
            array = ArraySound(sound, rate)
            return self._render(array)
        with AudioFile(sound) as file:
            return self._render(file)

    def _render(self, sound: AudioFile | ArraySound) -> tuple[Samples, int]:
        clip = Clip.of(sound.info)
        for transform in self.transforms:
            transform.draw(clip)
        return render(sound, clip), clip.rate


class _Changed:
    """A transform that receives an array: of feedline, of another library, or of the user."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._library = type(function).__module__.partition(".")[0]

    def __call__(self, sound: object, rate: int | None) -> tuple[object, int | None]:
        function = self._function
        if isinstance(function, ArrayTransform):
            return function.transform(sound, rate), rate
        if self._library == "audiomentations":
            return function(samples=sound, sample_rate=rate), rate
        if self._library == "torchaudio" and isinstance(sound, np.ndarray):
            torch = require("torch", extra="torch", purpose="Transforms of torchaudio")
            sound = torch.from_numpy(sound)
        if self._library == "torchaudio" and rate is not None:
            rate = getattr(function, "new_freq", rate)  # of its Resample
        return function(sound), rate


def _floats(values: object) -> object:
    """Return sound that a table stores as a list of numbers as an array, and anything else as it is."""
    return np.array(values, np.float32) if isinstance(values, list) else values


def array_of(sound: Any) -> object:
    """Return a tensor as an array, and anything else as it is."""
    return sound.numpy(force=True) if is_tensor(sound) else sound
