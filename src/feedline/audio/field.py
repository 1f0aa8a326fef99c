"""Which field of a sample is the sound."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from feedline.audio.containers import format_of
from feedline.errors import BadOption
from feedline.images.field import is_encoded, only_file
from feedline.system.optional import is_tensor

_STORED = ({"bytes", "path"}, {"array", "sampling_rate"}, {"array", "sampling_rate", "path"})
"""The keys of a sound as Hugging Face stores it: the file, or what it decoded to."""


# Any, throughout: samples and their fields.
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
    if not isinstance(sample, (Mapping, tuple, list)) or is_stored(sample):
        return None
    names: list[Hashable] = list(sample) if isinstance(sample, Mapping) else list(range(len(sample)))
    if field is not None:
        if field not in names:
            raise BadOption(f".on({field!r}) names a field that the sample does not have: it has {_listed(names)}.")
        return field
    values: Any = sample
    found = [name for name in names if is_file(values[name])] or [name for name in names if is_sound(values[name])]
    found = found or only_file(values, names)
    if len(found) != 1:
        which = f"Several fields hold sound: {_listed(found)}" if found else "No field of the sample holds sound"
        raise BadOption(
            f"{which}. It has {_listed(names)}. Choose the one to transform with .on(name), or leave out others with "
            "fields=. Text is not taken for a path unless .on(name) says so."
        )
    return found[0]


def is_file(value: Any) -> bool:
    """True for an audio file: its bytes, its path as an `os.PathLike`, or what Hugging Face stores of it."""
    if is_encoded(value):
        return format_of(bytes(value[:12])) is not None
    if isinstance(value, list):  # several samples at once, as Hugging Face passes them
        return bool(value) and is_file(value[0])
    return isinstance(value, os.PathLike) or is_stored(value)


def is_sound(value: Any) -> bool:
    """True for an array or tensor of floats, which may be sound."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and value.ndim > 0
    return is_tensor(value) and value.is_floating_point() and value.ndim > 0


def is_stored(value: object) -> bool:
    """True for a sound as Hugging Face stores it."""
    return isinstance(value, Mapping) and value.keys() in _STORED


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names)) or "none"
