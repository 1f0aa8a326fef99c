"""Images, sounds and videos: which field of a sample holds one, and pipelines that change it and leave the others."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeGuard

import numpy as np

from feedline.errors import BadOption, CorruptSource
from feedline.randomness.scope import TRANSFORM, stage
from feedline.system.failures import add_note

if TYPE_CHECKING:
    from typing_extensions import Self

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
            found = [name for name in possible if test(_first(values[name]))]
            if len(found) == 1:
                return found[0]
            if found and test is not is_encoded:
                raise BadOption(f"Several fields hold {self.several}: {_listed(found)}. {self._choose(names)}")
        raise BadOption(f"No field of the sample holds {self.one}. {self._choose(names)}")

    def _choose(self, names: Iterable[object]) -> str:
        return f"It has {_listed(names)}. {self.advice}"


class MediumPipeline(ABC):
    """Changes the image, the sound or the video of a sample, and none of its other fields."""

    _medium: ClassVar[Medium]
    field: Hashable = None
    """The field that holds it; None to look for it."""

    def on(self, field: Hashable) -> Self:
        """Return a copy for samples that hold it in this field, or at this index of a tuple."""
        twin = copy.copy(self)
        vars(twin)["field"] = field  # also of frozen dataclasses
        return twin

    @abstractmethod
    def _changed(self, value: object) -> object:
        """Return what becomes of one image, sound or video."""

    def __call__(self, sample: object) -> Any:
        field = self._medium.field_of(sample, self.field)
        with stage(TRANSFORM):
            if field is None:
                return self._changed(sample)
            try:
                return replaced(sample, field, self._each)
            except CorruptSource as exc:
                if isinstance(sample, Mapping) and "__key__" in sample:  # a sample of a shard
                    shard = f" in {sample['__url__']}" if "__url__" in sample else ""
                    add_note(exc, f"in field {field!r} of sample {sample['__key__']!r}{shard}")
                raise

    def _each(self, value: object) -> object:
        if isinstance(value, list):  # several samples at once, as Hugging Face passes them
            return list(map(self._changed, value))
        return self._changed(value)

    def _shown_field(self) -> str:
        """Return the end of the pipeline's `repr`."""
        return "" if self.field is None else f".on({self.field!r})"


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


def _first(value: Any) -> object:
    """Return the first of several values, as Hugging Face passes them, and any other value as it is."""
    return value[0] if isinstance(value, list) and value else value


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names)) or "none"
