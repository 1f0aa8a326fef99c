"""What the fields of samples are, as far as a format has to know before the first is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from feedline.errors import PackError
from feedline.packing.pictures import extension_of

# Any, throughout: the value of a field.
Sample = dict[str, Any]
"""A sample on its way into a store: plain values by the names of their fields."""

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
    """"array" (of one shape), "ragged" (of several), "number", "str", "bytes" or "nested" (lists, dicts, mixtures)."""
    dtype: str = ""
    """Of arrays and numbers, as NumPy writes it."""
    shape: tuple[int, ...] = ()
    """Of one array; for ragged ones -1 along each axis."""
    extension: str = ""
    """bytes: what they are by their first bytes, such as "jpg"; "bin" if that says nothing."""
    nullable: bool = False
    """True if it may be None."""

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

    def fitted(self, value: Any) -> Any:
        """Return a value as the column holds it: numbers with the column's type, all else as it is.

        Raises:
            ValueError: it is something else than the column holds; the text says what.
        """
        if self.kind == "nested" or (value is None and self.nullable):
            return value
        if self.kind == "number":
            return self._number(value)
        if self.kind in ("array", "ragged"):
            return self._array(value)
        if not isinstance(value, str if self.kind == "str" else bytes):
            raise ValueError(f"{said(value)}, not {self.described}")
        return value

    def _number(self, value: Any) -> Any:
        if not isinstance(value, _NUMBERS):
            raise ValueError(f"{said(value)}, not {self.described}")
        dtype = np.dtype(self.dtype)
        try:
            number = dtype.type(value)
            # As Python's numbers: NumPy would round the value to the column's type first, and find it the same.
            stored, given = _exact(number), _exact(value)
            same = bool(stored == given) or bool(stored != stored and given != given)
        except (OverflowError, TypeError, ValueError):
            same = False
        if not same:
            raise ValueError(f"{said(value)}, which {self.described} cannot hold")
        return number

    def _array(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.str != self.dtype or value.ndim != len(self.shape):
            raise ValueError(f"{said(value)}, not {self.described}")
        if self.kind == "array" and value.shape != self.shape:
            raise ValueError(f"{said(value)}, not {self.described}")
        return value

    @property
    def described(self) -> str:
        """What the column holds, for people."""
        if self.kind == "array":
            return f"{np.dtype(self.dtype).name} arrays of shape {self.shape}"
        if self.kind == "ragged":
            return f"{np.dtype(self.dtype).name} arrays of different shapes ({len(self.shape)}-dimensional)"
        if self.kind == "number":
            return f"{np.dtype(self.dtype).name} numbers"
        return {"str": "strings", "bytes": "bytes", "nested": "lists, dicts or values of different kinds"}[self.kind]


@dataclass(frozen=True)
class Schema:
    """The columns of all samples, in order."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, samples: Sequence[Sample], *, ragged: Iterable[str] = ()) -> Schema:
        """Return the schema that fits these samples, the first of a dataset.

        Args:
            samples: at least one.
            ragged: names of array fields whose shapes differ, even if those of these samples do not.

        Raises:
            PackError: their fields differ, or a field that is said to be ragged is not there.
        """
        names, varying = list(samples[0]), set(ragged)
        for number, sample in enumerate(samples):
            check_names(sample, names, number)
        if varying - set(names):
            raise PackError(f"ragged={sorted(varying - set(names))[0]!r} is no field: samples have {listed(names)}.")
        return cls(
            tuple(Column.of(name, [sample[name] for sample in samples], ragged=name in varying) for name in names)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(column.name for column in self.columns)

    def fitted(self, sample: Sample, number: int) -> Sample:
        """Return a sample with values as the columns hold them.

        Raises:
            PackError: it does not fit; it is called `number` there.
        """
        check_names(sample, self.names, number)
        values: Sample = {}
        for column in self.columns:
            try:
                values[column.name] = column.fitted(sample[column.name])
            except ValueError as exc:
                advice = (
                    f" Say that its shapes differ: --ragged {column.name} (ragged={[column.name]} in Python)."
                    if column.kind == "array" and isinstance(sample[column.name], np.ndarray)
                    else " The first samples decide what a field holds. Make all samples alike in the dataset."
                )
                raise PackError(
                    f"Field {column.name!r} of sample {number} is {exc} as in the first samples.{advice}"
                ) from exc
        return values

    def as_json(self) -> list[dict[str, Any]]:
        """Return it in values that JSON keeps."""
        return [{**asdict(column), "shape": list(column.shape)} for column in self.columns]

    @classmethod
    def from_json(cls, columns: Iterable[Mapping[str, Any]]) -> Schema:
        """Read what `as_json` returned."""
        return cls(tuple(Column(**{**column, "shape": tuple(column["shape"])}) for column in columns))


def check_names(sample: Sample, names: Sequence[str], number: int) -> None:
    """Refuse a sample whose fields are not those of the first.

    Raises:
        PackError: they differ.
    """
    if list(sample) != list(names):
        raise PackError(
            f"Sample {number} has {listed(list(sample))}, but the first has {listed(names)}. All samples of a store "
            "have the same fields in the same order: make them alike in the dataset."
        )


def listed(names: Sequence[str]) -> str:
    """Return names of fields for people."""
    return f"the fields {', '.join(map(repr, names))}" if names else "no fields"


def said(value: Any) -> str:
    """Say what a value is, for people."""
    if isinstance(value, np.ndarray):
        return f"a {value.dtype.name} array of shape {value.shape}"
    if isinstance(value, _NUMBERS):
        return f"the {type(value).__name__} {value!r:.60}"
    return "None" if value is None else f"a {type(value).__name__}"


def is_utf8(text: str) -> bool:
    """False for strings with halves of surrogate pairs, as names of files in other encodings have them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _array_column(name: str, arrays: Sequence[Any], *, ragged: bool) -> Column:
    first = arrays[0]
    if any(array.dtype != first.dtype or array.ndim != first.ndim for array in arrays):
        return Column(name, "nested")
    if ragged or any(array.shape != first.shape for array in arrays):
        return Column(name, "ragged", first.dtype.str, (-1,) * first.ndim)
    return Column(name, "array", first.dtype.str, first.shape)


def _number_column(name: str, values: Sequence[Any]) -> Column:
    dtypes = {_dtype_of(value) for value in values}
    if None in dtypes:
        return Column(name, "nested")
    dtype = np.result_type(*dtypes)
    if dtype.kind == "f" and all(one is not None and one.kind in "iu" for one in dtypes):
        return Column(name, "nested")  # NumPy makes floats of integers that have no type in common
    return Column(name, "number", dtype.str)


def _exact(number: Any) -> Any:
    return number.item() if isinstance(number, np.generic) else number


def _dtype_of(value: Any) -> np.dtype[Any] | None:
    if isinstance(value, np.generic):
        return value.dtype
    if type(value) is int:
        if -(1 << 63) <= value < 1 << 63:
            return np.dtype(np.int64)
        return np.dtype(np.uint64) if 0 <= value < 1 << 64 else None
    return np.asarray(value).dtype
