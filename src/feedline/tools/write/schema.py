"""The schema of samples: what a format has to know about their fields before the first sample is written."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.tools.write.pictures import extension_of, is_picture
from feedline.types import JsonObject

# Any, throughout: the value of a field.
Sample = dict[str, Any]
"""A sample on its way into a store: plain values by field name."""

_NUMBERS = (bool, int, float, complex, np.generic)


@dataclass(frozen=True)
class Column:
    """One field of all samples.

    Example:
        >>> Column.of("x", [np.zeros(3, np.float32), np.ones(3, np.float32)])
        Column(name='x', kind='array', dtype='<f4', shape=(3,), extension='', nullable=False)
    """

    name: str
    kind: str
    """"array" (of one shape), "ragged" (of several), "mixed" (arrays of several types or numbers of axes), "number",
    "str", "bytes" or "nested" (lists, dicts, values of different kinds)."""
    dtype: str = ""
    """Type of arrays and numbers, in NumPy's notation."""
    shape: tuple[int, ...] = ()
    """Shape of each array; -1 along each axis for ragged ones."""
    extension: str = ""
    """File type of bytes by their first bytes, such as "jpg"; "bin" if these are not recognised. Tar files name their
    members by it, so there it lists all types that occur: "jpg;png"."""
    nullable: bool = False
    """True if values may be None."""

    @classmethod
    def of(cls, name: str, values: Sequence[Any], *, ragged: bool = False) -> Column:
        """Return the column that holds these values."""
        present = [value for value in values if value is not None]
        nullable = len(present) < len(values)
        if present and all(isinstance(value, np.ndarray) for value in present):
            column = _array_column(name, present, ragged=ragged)
        elif present and all(isinstance(value, _NUMBERS) for value in present):
            column = _number_column(name, present)
        elif present and all(isinstance(value, str) for value in present):
            column = cls(name, "str")
        elif present and all(isinstance(value, bytes) for value in present):
            column = cls(name, "bytes", extension=extension_of(present[0]))
        else:
            column = cls(name, "nested")
        return cls(**{**asdict(column), "nullable": nullable, "shape": column.shape})

    def fitted(self, value: object) -> Any:
        """Return a value as the column holds it: numbers in the column's type, other values unchanged.

        Raises ValueError: the column does not hold such a value; the text describes both.
        """
        if self.kind == "nested" or (value is None and self.nullable):
            return value
        if self.kind == "number":
            return self._number(value)
        if self.kind in ("array", "ragged", "mixed"):
            return self._array(value)
        if not isinstance(value, str if self.kind == "str" else bytes):
            raise ValueError(f"{describe(value)}, not {self.described}")
        return value

    def _number(self, value: object) -> object:
        if not isinstance(value, _NUMBERS):
            raise ValueError(f"{describe(value)}, not {self.described}")
        dtype = np.dtype(self.dtype)
        if dtype.kind in "mM":  # a time cast to another unit would not be read back unchanged
            if getattr(value, "dtype", None) != dtype:
                raise ValueError(f"{describe(value)}, not {self.described}")
            return value
        try:
            number = dtype.type(value)
            # Compare Python numbers: NumPy would first round the value to the column's type, and then find them equal.
            stored, given = _exact(number), _exact(value)
            same = bool(stored == given) or bool(stored != stored and given != given)
        except (OverflowError, TypeError, ValueError):
            same = False
        if not same:
            raise ValueError(f"{describe(value)}, which does not fit {self.described}")
        return number

    def _array(self, value: Any) -> object:
        is_array = isinstance(value, np.ndarray)
        alike = is_array and value.dtype.str == self.dtype and value.ndim == len(self.shape)
        if self.kind == "array":
            alike = alike and value.shape == self.shape
        if not (is_array if self.kind == "mixed" else alike):
            raise ValueError(f"{describe(value)}, not {self.described}")
        return value

    @property
    def row_bytes(self) -> int:
        """Size of an array of one shape, or of a number, in bytes."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    @property
    def stacks(self) -> bool:
        """True if the default collate function can batch the values."""
        return not self.nullable and self.kind not in ("ragged", "mixed", "nested")

    @property
    def described(self) -> str:
        """What the column holds, for people."""
        if self.kind == "array":
            return f"{np.dtype(self.dtype).name} arrays of shape {self.shape}"
        if self.kind == "ragged":
            return f"{np.dtype(self.dtype).name} arrays of different shapes ({len(self.shape)}-dimensional)"
        if self.kind == "number":
            return f"{np.dtype(self.dtype).name} numbers"
        return {
            "str": "strings",
            "bytes": "bytes",
            "mixed": "arrays of different types or numbers of axes",
            "nested": "lists, dicts or values of different kinds",
        }[self.kind]


@dataclass(frozen=True)
class Schema:
    """The columns of all samples, in order."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, samples: Sequence[Sample], *, ragged: Collection[str] = ()) -> Schema:
        """Return the schema that fits these samples, all with the same fields; fields in `ragged` differ in shape."""
        names = list(samples[0])
        return cls(tuple(Column.of(name, [one[name] for one in samples], ragged=name in ragged) for name in names))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(column.name for column in self.columns)

    def fitted(self, sample: Sample) -> Sample:
        """Return a sample with its fields in the order of the columns, and its values as the columns hold them.

        Raises Unfit: the sample differs from the first ones.
        """
        # Comparing tuples is faster than comparing sets, which allow another order.
        if tuple(sample) != self.names and sample.keys() != set(self.names):
            raise Unfit(
                f"it has {listed(list(sample))}, but the first ones have {listed(self.names)}",
                "All samples of a store must have the same fields. Make them alike in the dataset, or choose fields "
                "that all samples have with --fields (fields=).",
            )
        values: Sample = {}
        for column in self.columns:
            try:
                values[column.name] = column.fitted(sample[column.name])
            except ValueError as exc:
                raise Unfit(
                    f"its field {column.name!r} is {exc} like those in the first samples", _advice(column, sample)
                ) from exc
        return values

    def chosen(self, names: Sequence[str], place: str) -> Schema:
        """Return the schema of these fields only. Raises BadOption: one does not exist at `place`."""
        columns = {column.name: column for column in self.columns}
        missing = next((name for name in names if name not in columns), None)
        if missing is not None:
            raise BadOption(f"{place} has no field {missing!r}, only {listed(self.names)}.")
        return Schema(tuple(columns[name] for name in names))

    def with_extension(self, name: str, extension: str) -> Schema:
        """Return the schema with one more extension for a field of bytes."""
        return Schema(
            tuple(
                replace(column, extension=f"{column.extension};{extension}") if column.name == name else column
                for column in self.columns
            )
        )

    def as_json(self) -> list[JsonObject]:
        """Return the schema in JSON-compatible values."""
        return [{**asdict(column), "shape": list(column.shape)} for column in self.columns]

    @classmethod
    def from_json(cls, columns: Iterable[JsonObject]) -> Schema:
        """Rebuild a schema from the result of `as_json`."""
        return cls(tuple(Column(**{**column, "shape": tuple(column["shape"])}) for column in columns))


class Unfit(ValueError):
    """A sample differs from the first ones, or the format cannot hold it.

    The caller, which knows the sample's number, raises a `PackError` from it or skips the sample.
    """

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self.advice = advice


def _advice(column: Column, sample: Sample) -> str:
    value = sample[column.name]
    is_like = isinstance(value, np.ndarray) and column.kind == "array" and value.dtype.str == column.dtype
    if not is_like or value.ndim != len(column.shape):
        return "The first samples decide what a field holds: make all samples alike in the dataset."
    if is_picture(value):
        return "Give all pictures one size, such as --resize 256x256 (resize=(256, 256))."
    formats = "any format but npy" if value.ndim == 1 else "lmdb or tar"
    return f"Declare that its shapes differ: --ragged {column.name} (ragged={[column.name]} in Python), in {formats}."


def listed(names: Sequence[str]) -> str:
    """Return field names for a message."""
    return f"the fields {', '.join(map(repr, names))}" if names else "no fields"


def describe(value: object) -> str:
    """Describe a value for a message."""
    if isinstance(value, np.ndarray):
        return f"a {value.dtype.name} array of shape {value.shape}"
    if isinstance(value, _NUMBERS):
        return f"the {type(value).__name__} {value!r:.60}"
    return "None" if value is None else f"a {type(value).__name__}"


def is_utf8(value: object) -> bool:
    """False for strings with unpaired surrogates, such as file names in other encodings."""
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _array_column(name: str, arrays: Sequence[NDArray[np.generic]], *, ragged: bool) -> Column:
    first = arrays[0]
    if any(array.dtype != first.dtype or array.ndim != first.ndim for array in arrays):
        return Column(name, "mixed")
    if ragged or any(array.shape != first.shape for array in arrays):
        return Column(name, "ragged", first.dtype.str, (-1,) * first.ndim)
    return Column(name, "array", first.dtype.str, first.shape)


def _number_column(name: str, values: Sequence[object]) -> Column:
    dtypes = {_dtype_of(value) for value in values}
    kinds = {one.kind for one in dtypes if one is not None}
    if None in dtypes or (kinds & set("mM") and len(dtypes) > 1):  # mixed time units would not be read back unchanged
        return Column(name, "nested")
    dtype = np.result_type(*dtypes)
    if dtype.kind == "f" and all(one is not None and one.kind in "iu" for one in dtypes):
        return Column(name, "nested")  # NumPy turns integers without a common type into floats
    return Column(name, "number", dtype.str)


def _exact(number: object) -> object:
    return number.item() if isinstance(number, np.generic) else number


def _dtype_of(value: object) -> np.dtype[np.generic] | None:
    if isinstance(value, np.generic):
        return value.dtype
    if type(value) is int:
        if -(1 << 63) <= value < 1 << 63:
            return np.dtype(np.int64)
        return np.dtype(np.uint64) if 0 <= value < 1 << 64 else None
    return np.asarray(value).dtype
