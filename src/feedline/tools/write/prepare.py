"""Prepare samples in a worker for writing: plain values by field name, and pictures as they are stored."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.kind import kind_of
from feedline.errors import PackError
from feedline.system.failures import words
from feedline.system.optional import is_tensor
from feedline.tools.write.options import Renamed, is_name
from feedline.tools.write.pictures import Pictures, extension_of
from feedline.tools.write.schema import Sample, describe, listed
from feedline.types import DatasetKind
from feedline.workers.fetch.awaiting import is_awaited

PICTURE = "image"
"""The field with the content of a picture file, in folders and tables."""
VALUE = "value"
"""The field name for samples that are not containers."""
_MOST_BITS = 1 << 13
"""Largest size of an integer in bits. Python refuses to convert integers of more than about 14,000 bits to or from
decimal digits."""


@dataclasses.dataclass(frozen=True)
class Item:
    """One sample, ready to be written, or the failure that prevented it."""

    number: int
    """Index of the sample in the dataset."""
    sample: Sample | None
    """None if it failed."""
    size: int = 0
    """Approximate size in bytes."""
    form: str = "dict"
    """Form of the dataset's sample: "dict", "tuple" or "one"."""
    failure: str = ""


# Any, throughout: a dataset, its samples, their values.
def numbered(dataset: object, *, skips: bool) -> Any:
    """Wrap a dataset, so that it yields (number, sample, failure) to the loader."""
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

    def __getitem__(self, index: int) -> object:
        try:
            return index, self.dataset[index], ""
        except Exception as exc:
            if not self.skips:
                raise
            return index, None, f"{type(exc).__name__}: {exc}"


class _NumberedTogether(_Numbered):
    def __getitems__(self, indices: Sequence[int]) -> list[object]:
        try:
            samples = self.dataset.__getitems__(list(indices))
        except Exception:
            if not self.skips:
                raise
            return [self[index] for index in indices]  # to find the one that fails, and keep the others
        return [(index, sample, "") for index, sample in zip(indices, samples, strict=True)]


class _Awaited(_Numbered):
    """Wraps a dataset with asynchronous samples, which the loader awaits many at a time."""

    async def __getitem__(self, index: int) -> object:
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

    def __iter__(self) -> Iterator[tuple[int, object, str]]:
        for number, sample in enumerate(self.dataset):
            yield number, sample, ""


@dataclasses.dataclass(frozen=True, eq=False)
class Prepare:
    """The collate function of the packing loader: turns a batch of numbered samples into items."""

    pictures: Pictures
    fields: Renamed | None
    """The fields to keep, or names for the elements of tuples."""
    skips: bool
    """True to leave out samples that cannot be prepared, instead of raising."""

    def __call__(self, batch: Sequence[tuple[int, object, str]]) -> list[Item]:
        return [self._item(number, sample, failure) for number, sample, failure in batch]

    def _item(self, number: int, raw: object, failure: str) -> Item:
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

    def _value(self, name: str, raw: object) -> object:
        value = plain(raw, name)
        is_file = name == PICTURE and self.pictures.does_something
        if is_file and isinstance(value, bytes) and extension_of(value) == "bin":
            raise PackError(f"its {len(value)} bytes, which begin with {value[:12]!r}, are not a picture.")
        return plain(self.pictures.apply(value), name)


def named_fields(sample: object, fields: Renamed | None) -> tuple[str, dict[str, object]]:
    """Return the form of a sample, and its values by name.

    Raises PackError: a field is missing, a field's name is not allowed, or the number of names differs from the number
    of elements.
    """
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        sample = dict(zip(sample._fields, sample, strict=True))
    elif dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        sample = {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    if isinstance(sample, Mapping):
        if fields is None:  # the keys and addresses of a tar file's samples are not part of the samples
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


def _chosen(sample: dict[Any, object], fields: Renamed | None) -> dict[str, object]:
    if fields is None:
        for key in sample:
            if not isinstance(key, str) or not is_name(key):
                raise PackError(
                    f"the name of its field {key!r:.80} cannot be part of a file name. Choose other fields, or rename "
                    f"it: --fields x={key!s:.80} (fields={{'x': {key!r:.80}}} in Python)."
                )
        return sample
    missing = [old for _, old in fields if old not in sample]
    if missing:
        raise PackError(f"it has no field {missing[0]!r}, only {listed(list(sample))}.")
    return {new: sample[old] for new, old in fields}


def plain(value: Any, name: str) -> Any:
    """Return a value as plain Python or NumPy: no framework tensors, foreign byte orders or zero-dimensional arrays.

    Raises PackError: no store can hold the value.
    """
    kind = type(value)
    if kind is int and value.bit_length() > _MOST_BITS:
        raise _refusal(name, f"an integer of {value.bit_length():,} bits", "bytes or a string")
    if value is None or kind in (str, bytes, bool, int, float, complex):
        return value
    if is_tensor(value):
        if str(value.dtype) == "torch.bfloat16":
            raise _refusal(name, "a tensor of bfloat16, which NumPy lacks", "float32")
        value = value.detach().cpu().numpy()
        kind = np.ndarray
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain_array(value, name)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):  # as text, it may be equal to another key
                what = f"a dict with the key {key!r:.80} in it, which is not a string"
                raise _refusal(name, what, "a dict whose keys are strings")
        return {str.__str__(key): plain(one, name) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, name) for one in value]
    if isinstance(value, str):
        return str.__str__(value)  # the str() of an enum is not the string that it stands for
    if isinstance(value, (bytes, int, float)):
        return bytes(value) if isinstance(value, bytes) else int(value) if isinstance(value, int) else float(value)
    if not hasattr(value, "getbands"):
        raise _refusal(name, describe(value), "arrays, numbers, strings or bytes")
    return value


def _plain_array(value: NDArray[np.generic] | np.generic, name: str) -> object:
    if isinstance(value, np.ma.MaskedArray):
        raise _refusal(name, "a masked array", "array.filled(), or into two fields, the data and the mask")
    if value.dtype.hasobject or value.dtype.kind == "V":
        raise _refusal(name, f"an array of type {value.dtype}", "arrays of numbers")
    if value.dtype.char in "gG":
        what = f"of type {value.dtype}, whose size and meaning differ between machines"
        raise _refusal(name, what, "float64 or complex128")
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, np.bytes_):
        return bytes(value)
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    return plain(value[()], name) if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _refusal(name: str, what: str, instead: str) -> PackError:
    return PackError(f"its field {name!r} is {what}: no format holds that. Turn it into {instead} in the dataset.")


def size_of(value: object) -> int:
    """Return the approximate size of a value in a store, in bytes."""
    if isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 8


def _called(sample: object) -> str:
    """Return the file of a sample, in parentheses, if the sample has a path."""
    path = sample.get("path") if isinstance(sample, Mapping) else None
    return f" ({path})" if isinstance(path, str) else ""
