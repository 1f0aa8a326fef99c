"""What is in a store, as far as a look at it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedline.packing.line import LISTS, collate_for, loader_text
from feedline.packing.pictures import extension_of
from feedline.packing.schema import Sample, Schema

DIFFERENT = "[different lengths]"
"""Part of the type of arrays of one axis whose lengths differ."""
COUNTED = ("row groups", "record batches", "other members")
"""Details that are about one file, and add up over several."""


@dataclass(frozen=True)
class Field:
    """One field of the samples, or one array of a file."""

    name: str
    type: str
    """For people: "uint8[32, 32, 3]", "str", "jpg"."""
    note: str = ""
    """How it is stored: chunks, compression."""
    counts: tuple[tuple[str, int], ...] = ()
    """How much of it there is, as (of what, how many): samples that have it, bytes."""

    @property
    def stored(self) -> str:
        """All that is known of how it is stored, for people."""
        counts = [f"{count:,} {what}" for what, count in self.counts]
        return ", ".join([*counts, self.note] if self.note else counts)


@dataclass(frozen=True)
class Contents:
    """What is in a store."""

    path: Path
    kind: str
    """For people: "HDF5", "LMDB", "tar", "folder of pictures"."""
    count: int | None
    """Samples; None if the file does not say where one ends."""
    size: int
    """Bytes."""
    fields: tuple[Field, ...]
    take: Callable[[int], list[Sample]]
    """Returns so many samples, from everywhere in the store where that is cheap, else the first."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further facts, by what they are called, in values that JSON keeps."""
    dataset: str = ""
    """The expression that opens it with a class of `feedline.datasets`; "" if none does."""
    stored: dict[str, Any] | None = None
    """What `feedline pack` stored with the samples; None if it was not written by it."""
    file_count: int = 1
    collate: str = ""
    """The expression for the loader's `collate=`, if samples of a foreign store do not stack."""

    @property
    def line(self) -> str:
        """The line of Python that reads it; "" if there is none."""
        if not self.dataset:
            return ""
        collate = self.collate
        if self.stored is not None:
            collate = collate_for(Schema.from_json(self.stored["fields"]), self.stored["form"])
        elif any(map(_varies, self.fields)):
            collate = LISTS
        return loader_text(self.dataset, collate)


def _varies(field: Field) -> bool:
    """True if arrays differ in type or shape, or some values are None."""
    types = field.type.split(" or ")
    return DIFFERENT in field.type or (len(types) > 1 and any("[" in one or one == "None" for one in types))


def spread(count: int, wanted: int) -> list[int]:
    """Return `wanted` numbers below `count`, evenly spread, in order.

    Example:
        >>> spread(100, 4)
        [0, 25, 50, 75]
        >>> spread(2, 4)
        [0, 1]
    """
    wanted = min(count, wanted)
    return [place * count // wanted for place in range(wanted)]


# Any: the value of a field.
def type_text(value: Any) -> str:
    """Say of what type a value is.

    Example:
        >>> type_text(np.zeros((2, 3), np.float32)), type_text("a"), type_text(b"abc"), type_text(3)
        ('float32[2, 3]', 'str', 'bytes', 'int')
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, bytes):
        kind = extension_of(value)
        return "bytes" if kind == "bin" else kind
    if isinstance(value, np.generic):
        return "str" if isinstance(value, np.str_) else value.dtype.name
    return "None" if value is None else type(value).__name__


def value_text(value: Any) -> str:
    """Show a value in a line.

    Example:
        >>> value_text(np.arange(6, dtype=np.uint8).reshape(2, 3)), value_text(b"abc"), value_text("name")
        ('uint8[2, 3], 0 to 5', "3 bytes, b'abc'", "'name'")
    """
    if isinstance(value, np.ndarray):
        numeric = value.size and value.dtype.kind in "biuf"
        few = value.size <= 8 and value.ndim == 1
        if few:
            return f"{type_text(value)}, {value.tolist()}"
        return f"{type_text(value)}{f', {value.min()} to {value.max()}' if numeric else ''}"
    if isinstance(value, bytes):
        kind = extension_of(value)
        start = f"{value[:24]!r}{'...' if len(value) > 24 else ''}"
        return f"{len(value):,} bytes, {start if kind == 'bin' else kind}"
    if isinstance(value, np.generic):
        value = value.item()
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def fields_of(samples: list[Sample]) -> tuple[Field, ...]:
    """Return the fields that some samples have, with all the types that occur."""
    names = list(dict.fromkeys(name for sample in samples for name in sample))
    fields = []
    for name in names:
        types = list(dict.fromkeys(type_text(sample[name]) for sample in samples if name in sample))
        fields.append(Field(name, " or ".join(types) if len(types) <= 4 else f"{types[0]} and {len(types) - 1} others"))
    return tuple(fields)
