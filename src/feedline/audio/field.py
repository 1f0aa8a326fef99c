"""Which field of a sample is the sound."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from feedline.audio.containers import format_of
from feedline.images.fields import Medium, is_encoded
from feedline.system.optional import is_tensor

_STORED = ({"bytes", "path"}, {"array", "sampling_rate"}, {"array", "sampling_rate", "path"})
"""The keys of a sound as Hugging Face stores it: the file, or what it decoded to."""


def audio_field(sample: object, field: Hashable = None) -> Hashable:
    r"""Return the field of a sample that holds sound; None if the sample is the sound itself.

    Args:
        sample: a sound, or a dict, tuple or list with a sound in one field.
        field: the field to use, if known.

    Raises:
        BadOption: there is no such field, or not exactly one field holds sound.

    Example:
        >>> audio_field({"flac": b"fLaC...", "cls": 3})
        'flac'
    """
    return _SOUND.field_of(sample, field)


def is_file(value: object) -> bool:
    """True for an audio file: its bytes, its path as an `os.PathLike`, or what Hugging Face stores of it."""
    if is_encoded(value):
        return format_of(bytes(value[:12])) is not None
    if isinstance(value, list):  # several samples at once, as Hugging Face passes them
        return bool(value) and is_file(value[0])
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


_SOUND = Medium(
    "sound",
    "sound",
    (is_file, is_sound),
    is_stored,
    "Choose the one to transform with .on(name), or leave out others with fields=. Text is not taken for a path unless "
    ".on(name) says so.",
)
