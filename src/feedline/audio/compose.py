"""Sequences of audio transforms. Clips, resampling and mixing are decided before the file is decoded.

A pipeline consists of stages. Adjacent transforms that only change the clip (`ClipTransform.draw`) form one stage,
which decodes only the frames that it needs. Other transforms, such as `LogMel` or a function of the user's, are stages
of their own, which receive an array.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from feedline.audio.clip import ArraySound, Clip, render
from feedline.audio.decoding import AudioFile, Samples
from feedline.audio.field import audio_field, is_stored
from feedline.datasets.framework.source import checked_count
from feedline.errors import BadOption, CorruptSource
from feedline.images.fields import is_encoded, replaced
from feedline.randomness.scope import TRANSFORM, stage
from feedline.system.failures import add_note
from feedline.system.optional import is_tensor, require


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


class Compose:
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

    def __init__(self, transforms: Iterable[object], *, rate: int | None = None) -> None:
        self.transforms = tuple(_flat(transforms))
        self._stages = _stages_of(self.transforms)
        self.rate = None if rate is None else checked_count("rate", rate, 1)
        self.field: Hashable = None
        """The field of a sample that holds the sound; None to look for it."""

    def on(self, field: Hashable) -> Compose:
        """Return a copy for samples whose sound is in this field, or at this index of a tuple."""
        twin = copy.copy(self)
        twin.field = field
        return twin

    def __call__(self, sample: object) -> Any:
        field = audio_field(sample, self.field)
        if field is None:
            return self._sound(sample)
        try:
            return replaced(sample, field, self._sound)
        except CorruptSource as exc:
            if isinstance(sample, Mapping):
                add_note(exc, f"in field {field!r} of sample {_place_of(sample)}")
            raise

    def _sound(self, sound: object) -> object:
        if isinstance(sound, list):  # several samples at once, as Hugging Face passes them
            return list(map(self._sound, sound))
        return self.apply(sound)[0]

    def apply(self, sound: Any) -> tuple[Any, int | None]:
        """Return the transformed sound, and its rate; None for an array whose rate is not known.

        Args:
            sound: an audio file or an array, without other fields.
        """
        rate = self.rate
        if is_stored(sound):
            rate = sound.get("sampling_rate", rate)
            sound = _floats(sound["array"]) if "array" in sound else sound["bytes"] or sound["path"]
        with stage(TRANSFORM):
            for one in self._stages:
                sound, rate = one(sound, rate)
        return sound, rate

    def __repr__(self) -> str:
        rate = "" if self.rate is None else f", rate={self.rate}"
        on = "" if self.field is None else f".on({self.field!r})"
        return f"Compose([{', '.join(map(repr, self.transforms))}]{rate}){on}"


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


def _place_of(sample: Mapping[str, object]) -> str:
    """Name a sample of a shard, for errors."""
    key, url = sample.get("__key__"), sample.get("__url__")
    return "" if key is None else repr(key) if url is None else f"{key!r} in {url}"
