"""What a worker does with samples before they are written: plain values by name, pictures."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.datasets.kind import kind_of
from feedline.errors import PackError
from feedline.system.failures import words
from feedline.system.optional import is_tensor
from feedline.tools.packing.options import Renamed, is_name
from feedline.tools.packing.pictures import Pictures, extension_of
from feedline.tools.packing.schema import Sample, listed, said
from feedline.types import DatasetKind
from feedline.workers.fetch.awaiting import is_awaited

PICTURE = "image"
"""The field of folders and tables with the content of a picture's file."""
VALUE = "value"
"""The field of samples that are no container."""
_MOST_BITS = 1 << 13
"""Of an integer: Python refuses to write, or to read, more than about 14,000 of them as digits."""


@dataclasses.dataclass(frozen=True)
class Item:
    """One sample, ready to be written, or what became of it."""

    number: int
    """Of the sample in the dataset."""
    sample: Sample | None
    """None if it failed."""
    size: int = 0
    """Bytes, about."""
    form: str = "dict"
    """What the dataset's sample was: "dict", "tuple" or "one"."""
    failure: str = ""


# Any, throughout: a dataset, its samples, their values.
def numbered(dataset: Any, *, skips: bool) -> Any:
    """Return a dataset of (number, sample, failure); the loader takes it in place of the other."""
    if kind_of(dataset, "dataset") is DatasetKind.ITERABLE:
        return _NumberedStream(dataset)
    if is_awaited(dataset):
        return _Awaited(dataset, skips)
    return (_NumberedTogether if hasattr(dataset, "__getitems__") else _Numbered)(dataset, skips)


@dataclasses.dataclass(frozen=True, eq=False)
class _Numbered:
    dataset: Any
    skips: bool
    """True if samples that raise an exception are left out."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        try:
            return index, self.dataset[index], ""
        except Exception as exc:
            if not self.skips:
                raise
            return index, None, f"{type(exc).__name__}: {exc}"


class _NumberedTogether(_Numbered):
    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        try:
            samples = self.dataset.__getitems__(list(indices))
        except Exception:
            if not self.skips:
                raise
            return [self[index] for index in indices]  # which of them it is, and that of the others
        return [(index, sample, "") for index, sample in zip(indices, samples, strict=True)]


class _Awaited(_Numbered):
    """Of a dataset whose samples have to be awaited, as the loader then does, many at once."""

    async def __getitem__(self, index: int) -> Any:
        try:
            found = self.dataset[index]
            return index, await found if inspect.isawaitable(found) else found, ""
        except Exception as exc:
            if not self.skips:
                raise
            return index, None, f"{type(exc).__name__}: {exc}"


@dataclasses.dataclass(frozen=True, eq=False)
class _NumberedStream:
    dataset: Any

    def __iter__(self) -> Iterator[Any]:
        for number, sample in enumerate(self.dataset):
            yield number, sample, ""


@dataclasses.dataclass(frozen=True, eq=False)
class Prepare:
    """Makes items of a batch of numbered samples; the collate function of the loader that packs."""

    pictures: Pictures
    fields: Renamed | None
    """Those to keep, or names for the elements of tuples."""
    skips: bool
    """True if samples that cannot be prepared are left out, not an error."""

    def __call__(self, batch: Sequence[Any]) -> list[Item]:
        return [self._item(number, sample, failure) for number, sample, failure in batch]

    def _item(self, number: int, raw: Any, failure: str) -> Item:
        if failure:
            return Item(number, None, failure=failure)
        try:
            form, named = named_fields(raw, self.fields)
            sample = {name: self._value(name, value) for name, value in named.items()}
        except PackError as exc:
            if not self.skips:
                raise PackError(f"Sample {number}{_called(raw)} cannot be packed: {words(exc)}.") from exc
            return Item(number, None, failure=str(exc))
        return Item(number, sample, sum(map(size_of, sample.values())), form)

    def _value(self, name: str, raw: Any) -> Any:
        value = plain(raw)
        is_file = name == PICTURE and isinstance(value, bytes) and self.pictures.does_something
        if is_file and extension_of(value) == "bin":
            raise PackError(f"its {len(value)} bytes, which begin with {value[:12]!r}, are no picture.")
        return plain(self.pictures.apply(value), name)


def named_fields(sample: Any, fields: Renamed | None) -> tuple[str, dict[str, Any]]:
    """Return what form a sample has, and its values by name.

    Raises PackError: a field is missing, has no proper name, or there are more or fewer names than elements.
    """
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        sample = dict(zip(sample._fields, sample, strict=True))
    elif dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        sample = {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    if isinstance(sample, Mapping):
        if fields is None:  # keys and addresses of a tar file's samples are no part of them
            sample = {
                key: value for key, value in sample.items() if key not in ("__key__", "__url__", "__local_path__")
            }
        return "dict", _chosen(dict(sample), fields)
    values = list(sample) if isinstance(sample, (tuple, list)) else [sample]
    form = "tuple" if isinstance(sample, (tuple, list)) else "one"
    names = [name for name, _ in fields] if fields is not None else [str(place) for place in range(len(values))]
    if form == "one" and fields is None:
        names = [VALUE]
    if len(names) != len(values):
        raise PackError(f"it has {len(values)} values, but fields= names {len(names)}: {', '.join(names)}.")
    return form, dict(zip(names, values, strict=True))


def _chosen(sample: dict[Any, Any], fields: Renamed | None) -> dict[str, Any]:
    if fields is None:
        for key in sample:
            if not isinstance(key, str) or not is_name(key):
                raise PackError(
                    f"its field {key!r:.80} has no name that can be part of a file's. Choose others, or give it "
                    f"another name: --fields x={key!s:.80} (fields={{'x': {key!r:.80}}} in Python)."
                )
        return sample
    missing = [old for _, old in fields if old not in sample]
    if missing:
        raise PackError(f"it has no field {missing[0]!r}, only {listed(list(sample))}.")
    return {new: sample[old] for new, old in fields}


def plain(value: Any, name: str = "") -> Any:
    """Return a value without what is no part of it: a framework's tensors, other byte orders, arrays of one number.

    Raises PackError: it is nothing that a store holds; only asked if a name is given.
    """
    kind = type(value)
    if kind is int and name and value.bit_length() > _MOST_BITS:
        raise PackError(
            f"its field {name!r} is an integer of {value.bit_length():,} bits, which no format holds. Turn it into "
            "bytes or a string in the dataset."
        )
    if value is None or kind in (str, bytes, bool, int, float, complex):
        return value
    if is_tensor(value):
        value = value.detach().cpu().numpy()
        kind = np.ndarray
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain_array(value, name)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one, name) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, name) for one in value]
    if isinstance(value, str):
        return str.__str__(value)  # the str() of an enum is not the string that it stands for
    if isinstance(value, (bytes, int, float)):
        return bytes(value) if isinstance(value, bytes) else int(value) if isinstance(value, int) else float(value)
    if name and not hasattr(value, "getbands"):
        raise PackError(
            f"its field {name!r} is {said(value)}, which no format holds. Turn it into arrays, numbers, strings or "
            "bytes in the dataset."
        )
    return value


def _plain_array(value: Any, name: str) -> Any:
    if value.dtype.hasobject or value.dtype.kind == "V":
        raise PackError(
            f"its field {name!r} is an array of type {value.dtype}, which no format holds. Turn it into arrays of "
            "numbers in the dataset."
        )
    if name and value.dtype.char in "gG":
        raise PackError(
            f"its field {name!r} is of type {value.dtype}, whose size and meaning differ between machines, so that no "
            "format holds it. Turn it into float64 or complex128 in the dataset."
        )
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, np.bytes_):
        return bytes(value)
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    return plain(value[()], name) if isinstance(value, np.ndarray) and value.ndim == 0 else value


def size_of(value: Any) -> int:
    """Return about how many bytes a value takes in a store."""
    if isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 8


def _called(sample: Any) -> str:
    """Say which file a sample is of, if it says so itself."""
    path = sample.get("path") if isinstance(sample, Mapping) else None
    return f" ({path})" if isinstance(path, str) else ""
