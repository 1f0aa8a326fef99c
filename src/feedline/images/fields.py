"""Fields of a sample: which one holds the image, the sound or the video."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from feedline.errors import BadOption

FileBytes: TypeAlias = bytes | bytearray | memoryview
"""The bytes of a file; arrays of bytes work as well."""


# Any, throughout: samples and their fields.
@dataclass(frozen=True)
class Medium:
    """How to recognise the field of a sample that holds an image, a sound or a video."""

    one: str
    """Its name in messages, such as "an image"."""
    several: str
    tests: tuple[Callable[[object], bool], ...]
    """Each returns True for a value that may be it. A later test counts only if no field passes those before."""
    is_whole: Callable[[object], bool]
    """True if a mapping is not a sample, but the medium itself, as Hugging Face stores it."""
    advice: str
    """What to do if not exactly one field holds it."""

    def field_of(self, sample: object, field: Hashable = None, others: Collection[object] = ()) -> Hashable:
        """Return the field of a sample that holds it; None if the sample is the medium itself.

        If no field holds it, but just one holds bytes, these are a damaged file, which the decoder reports by name.

        Args:
            sample: the medium, or a dict, tuple or list with it in one field.
            field: the field to use, if known.
            others: fields that only look like it.

        Raises:
            BadOption: there is no such field, or not exactly one field holds it.
        """
        if not isinstance(sample, (Mapping, tuple, list)) or self.is_whole(sample):
            return None
        names: list[Hashable] = list(sample) if isinstance(sample, Mapping) else list(range(len(sample)))
        if field is not None:
            if field not in names:
                raise BadOption(f".on({field!r}) names a field that the sample does not have: it has {_listed(names)}.")
            return field
        values: Any = sample
        if not isinstance(sample, Mapping):
            others = [len(sample) + name if isinstance(name, int) and name < 0 else name for name in others]
        possible = [name for name in names if name not in others]
        tests: tuple[Callable[[object], bool], ...] = (*self.tests, is_encoded)
        for test in tests:
            found = [name for name in possible if test(values[name])]
            if len(found) == 1:
                return found[0]
            if found and test is not is_encoded:
                raise BadOption(f"Several fields hold {self.several}: {_listed(found)}. {self._choose(names)}")
        raise BadOption(f"No field of the sample holds {self.one}. {self._choose(names)}")

    def _choose(self, names: Iterable[object]) -> str:
        return f"It has {_listed(names)}. {self.advice}"


def is_encoded(value: object) -> TypeGuard[FileBytes]:
    """True for bytes, which may be a file, and for arrays of bytes as HDF5 returns them."""
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim == 1
    return isinstance(value, (bytes, bytearray, memoryview))


def is_file(value: object) -> TypeGuard[Mapping[str, object]]:
    """True for a file as Hugging Face stores it: a struct of bytes and path."""
    return isinstance(value, Mapping) and value.keys() == {"bytes", "path"}


def replaced(sample: Any, field: Any, change: Callable[[Any], object]) -> Any:
    """Return a sample of the same kind with one of its fields changed."""
    if isinstance(sample, Mapping):
        return {**sample, field: change(sample[field])}
    values = list(sample)
    values[field] = change(values[field])
    if isinstance(sample, list):
        return values
    return type(sample)(*values) if hasattr(sample, "_fields") else tuple(values)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names)) or "none"
