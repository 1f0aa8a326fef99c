"""What the fields of samples are, as far as a format has to know before the first is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from feedline.errors import PackError
from feedline.tools.packing.pictures import extension_of, is_picture

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
    """"array" (of one shape), "ragged" (of several), "mixed" (arrays of several types or numbers of axes), "number",
    "str", "bytes" or "nested" (lists, dicts, values of different kinds)."""
    dtype: str = ""
    """Of arrays and numbers, as NumPy writes it."""
    shape: tuple[int, ...] = ()
    """Of one array; for ragged ones -1 along each axis."""
    extension: str = ""
    """bytes: what they are by their first bytes, such as "jpg"; "bin" if that says nothing. In a tar file, in which
    members are called by it, all that occur: "jpg;png"."""
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

        Raises ValueError: it is something else than the column holds; the text says what.
        """
        if self.kind == "nested" or (value is None and self.nullable):
            return value
        if self.kind == "number":
            return self._number(value)
        if self.kind in ("array", "ragged", "mixed"):
            return self._array(value)
        if not isinstance(value, str if self.kind == "str" else bytes):
            raise ValueError(f"{said(value)}, not {self.described}")
        return value

    def _number(self, value: Any) -> Any:
        if not isinstance(value, _NUMBERS):
            raise ValueError(f"{said(value)}, not {self.described}")
        dtype = np.dtype(self.dtype)
        if dtype.kind in "mM":  # one that is cast to another unit would not come back as it was
            if getattr(value, "dtype", None) != dtype:
                raise ValueError(f"{said(value)}, not {self.described}")
            return value
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
        is_array = isinstance(value, np.ndarray)
        alike = is_array and value.dtype.str == self.dtype and value.ndim == len(self.shape)
        if self.kind == "array":
            alike = alike and value.shape == self.shape
        if not (is_array if self.kind == "mixed" else alike):
            raise ValueError(f"{said(value)}, not {self.described}")
        return value

    @property
    def stacks(self) -> bool:
        """True if the default collate function makes batches of it."""
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
        """Return the schema that fits these samples, all with the same fields; `ragged` ones differ in shape."""
        names = list(samples[0])
        return cls(tuple(Column.of(name, [one[name] for one in samples], ragged=name in ragged) for name in names))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(column.name for column in self.columns)

    def fitted(self, sample: Sample) -> Sample:
        """Return a sample with the fields in the order of the columns, and values as these hold them.

        Raises Unfit: it is not like the first ones.
        """
        # First what is quicker to say than whether they are the same in another order.
        if tuple(sample) != self.names and sample.keys() != set(self.names):
            raise Unfit(
                f"it has {listed(list(sample))}, but the first ones have {listed(self.names)}",
                "All samples of a store have the same fields: make them alike in the dataset, or choose fields that "
                "all have with --fields (fields=).",
            )
        values: Sample = {}
        for column in self.columns:
            try:
                values[column.name] = column.fitted(sample[column.name])
            except ValueError as exc:
                raise Unfit(
                    f"its field {column.name!r} is {exc} as in the first samples", _advice(column, sample)
                ) from exc
        return values

    def with_extension(self, name: str, extension: str) -> Schema:
        """Return it with one more extension for a field of bytes."""
        return Schema(
            tuple(
                replace(column, extension=f"{column.extension};{extension}") if column.name == name else column
                for column in self.columns
            )
        )

    def as_json(self) -> list[dict[str, Any]]:
        """Return it in values that JSON keeps."""
        return [{**asdict(column), "shape": list(column.shape)} for column in self.columns]

    @classmethod
    def from_json(cls, columns: Iterable[Mapping[str, Any]]) -> Schema:
        """Read what `as_json` returned."""
        return cls(tuple(Column(**{**column, "shape": tuple(column["shape"])}) for column in columns))


class Unfit(ValueError):
    """A sample is not like the first ones, or not what the format holds.

    Whoever knows which sample it is makes a `PackError` of it, or leaves the sample out.
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
    return f"Say that its shapes differ: --ragged {column.name} (ragged={[column.name]} in Python), in {formats}."


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
        return Column(name, "mixed")
    if ragged or any(array.shape != first.shape for array in arrays):
        return Column(name, "ragged", first.dtype.str, (-1,) * first.ndim)
    return Column(name, "array", first.dtype.str, first.shape)


def _number_column(name: str, values: Sequence[Any]) -> Column:
    dtypes = {_dtype_of(value) for value in values}
    kinds = {one.kind for one in dtypes if one is not None}
    if None in dtypes or (kinds & set("mM") and len(dtypes) > 1):  # of times in other units, others come back
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


@dataclass(frozen=True)
class Agreement:
    """Decides by the first samples what the fields hold."""

    format_name: str
    cannot_hold: Callable[[Column], str]
    """Says why the format cannot hold a column; "" if it can."""
    called: Callable[[int], str]
    """Returns what people call a sample, given its place among the first."""
    ragged: tuple[str, ...] = ()
    """Array fields whose shapes differ, even if those of the first samples do not."""
    skips: bool = False
    """True if samples that do not fit are left out, so that the most frequent kind of value decides."""

    def schema(self, samples: Sequence[Sample]) -> Schema:
        """Return what the fields hold. Samples with other fields are not looked at.

        Raises PackError: the format cannot hold it, or a field that is said to be ragged is not there.
        """
        sets = Counter(frozenset(sample) for sample in samples)
        wanted = sets.most_common(1)[0][0] if self.skips else samples[0].keys()
        places = [place for place, sample in enumerate(samples) if sample.keys() == wanted]
        names = list(samples[places[0]])
        unknown = sorted({*self.ragged} - {*names})
        if unknown:
            raise PackError(f"ragged={unknown[0]!r} is no field: samples have {listed(names)}.")
        return Schema(tuple(self._column(name, {place: samples[place][name] for place in places}) for name in names))

    def _column(self, name: str, values: dict[int, Any]) -> Column:
        column = self._of(name, list(values.values()))
        reason = self.cannot_hold(column)
        if not reason:
            return column
        present = [value for value in values.values() if value is not None]
        groups: dict[Any, list[int]] = {}  # Any: what values are alike in
        for place, value in values.items():
            kind = self._of(name, [value])
            alike = (kind.kind, kind.kind != "number" and kind.dtype, kind.shape, value is None)
            groups.setdefault(alike, []).append(place)
        by_size = sorted(groups.values(), key=len, reverse=True)
        kinds = [present, *([values[place] for place in group] for group in by_size)]
        held = [one for one in (self._of(name, kind) for kind in kinds if kind) if not self.cannot_hold(one)]
        if held and self.skips:
            return held[0]
        text = f"{self.format_name} cannot hold the field {name!r} ({column.described}): "
        if len(groups) > 1:
            (first, *_), (other, *_) = list(groups.values())[:2]
            text += f"it is {said(values[first])} in {self.called(first)}, and {said(values[other])} in "
            text += f"{self.called(other)}, but "
        skip = " Or leave out the samples that differ from most: --on-error skip (on_error='skip')."
        raise PackError(f"{text}{reason}{skip if held else ''}")

    def _of(self, name: str, values: Sequence[Any]) -> Column:
        return Column.of(name, values, ragged=name in self.ragged)
