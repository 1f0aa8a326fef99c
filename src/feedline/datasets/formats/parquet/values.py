"""Convert the columns of a row group to arrays, strings, bytes, lists and dicts.

A column is prepared once, when its row group is read. Samples are taken from the prepared form:

    numbers, booleans                     a NumPy scalar of the same type
    timestamp, date, duration             numpy.datetime64 or timedelta64 of the same unit; with a time zone, in UTC
    fixed_shape_tensor, fixed_size_list   an array of that shape
    list of numbers                       an array of its length
    string, binary                        str, bytes
    dictionary                            the form of its values
    struct                                a dict
    other lists                           a list of converted values
    map                                   a list of pairs
    decimal, time and the rest            pyarrow's own conversion: decimal.Decimal, datetime.time
    null                                  None at any level; numbers with a null among them become a list of
                                          Python's numbers, or of NumPy's timestamps, dates and durations

Other extension types are converted as their storage type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import SourceError
from feedline.system.optional import require

if TYPE_CHECKING:
    from pyarrow import Array, DataType

Rows = NDArray[np.int64]

_FEW = 3
"""Up to this many objects, single lookups are quicker than a take. Measured once."""


def rows_of(array: NDArray[np.generic], rows: Rows) -> NDArray[np.generic]:
    """Return rows of an array. `take` is quicker, but first copies a non-contiguous array as a whole."""
    return array.take(rows, 0) if array.flags.c_contiguous else array[rows]


class Prepared(ABC):
    """The values of one field in one row group."""

    @abstractmethod
    def take(self, rows: Rows) -> NDArray[np.generic] | list[object]:
        """Return the values of these rows: a new array with a row per sample, or a list."""


@dataclass(eq=False)
class Numbers(Prepared):
    """Values stored in one array."""

    array: NDArray[np.generic]
    """A row per value."""
    valid: NDArray[np.bool_] | None
    """Which values are not null; None if all are."""
    present: NDArray[np.bool_] | None = None
    """Which numbers inside values are not null, in the shape of the array; None if all are."""

    def take(self, rows: Rows) -> NDArray[np.generic] | list[object]:
        taken = rows_of(self.array, rows)
        valid = None if self.valid is None else self.valid.take(rows)
        present = None if self.present is None else self.present.take(rows, 0)
        if (valid is None or valid.all()) and (present is None or present.all()):
            return taken
        values = list(taken)
        if present is not None:
            values = [_with_gaps(value, there) for value, there in zip(values, present, strict=True)]
        return values if valid is None else _with_nulls(values, valid)

    @property
    def is_whole(self) -> bool:
        """True if nothing is missing."""
        return self.valid is None and self.present is None


@dataclass(eq=False)
class Vectors(Numbers):
    """Columns of numbers, stacked side by side."""

    missing: tuple[tuple[str, NDArray[np.bool_]], ...] = ()
    """The columns that have nulls, with their validity masks."""
    place: str = ""
    """Their location, for error messages."""

    def take(self, rows: Rows) -> NDArray[np.generic]:
        for name, valid in self.missing:
            there = valid.take(rows)
            if not there.all():
                raise SourceError(
                    f"Column {name!r} is null in row {int(rows[np.argmin(there)])} of {self.place}, and a vector "
                    f"cannot hold that. Leave such rows out, filters=~pyarrow.compute.field({name!r}).is_null(), or "
                    "write the file with a number in their place."
                )
        return rows_of(self.array, rows)


def vectors(columns: Sequence[Prepared], names: Sequence[str], place: str) -> Vectors:
    """Stack columns of numbers of one type side by side."""
    numbers = [column for column in columns if isinstance(column, Numbers)]
    missing = tuple((name, one.valid) for name, one in zip(names, numbers, strict=True) if one.valid is not None)
    valid = None
    for _, own in missing:
        valid = own if valid is None else valid & own
    return Vectors(np.stack([one.array for one in numbers], 1), valid, None, missing, place)


@dataclass(eq=False)
class Nested(Prepared):
    """Nested lists of fixed length, some of which are null."""

    _numbers: Numbers
    """All numbers; null ones are marked as not present."""
    _array: Array
    """The same as a pyarrow array."""

    def take(self, rows: Rows) -> list[object]:
        taken = list(self._numbers.take(rows))
        listed = zip(taken, rows.tolist(), strict=True)
        return [_without_null_lists(value, self._array[row]) for value, row in listed]


def _with_gaps(value: NDArray[np.generic], present: NDArray[np.bool_]) -> object:
    """Return the array itself, or a list if it contains nulls: the form of a value depends on no other value."""
    if present.all():
        return value
    if value.dtype.kind in "mM":  # as Python objects, they would be dates, or mere numbers
        gaps = np.empty(value.shape, object)
        gaps.reshape(-1)[:] = list(value.reshape(-1))
    else:
        gaps = value.astype(object)
    gaps[~present] = None
    return gaps.tolist()


# Any: a pyarrow scalar.
def _without_null_lists(value: object, found: Any) -> object:
    """Return None in place of lists of nulls that are null themselves."""
    if not isinstance(value, list):
        return value
    if not found.is_valid:
        return None
    return [_without_null_lists(one, inner) for one, inner in zip(value, found.values, strict=True)]


def _with_nulls(values: list[object], valid: NDArray[np.bool_]) -> list[object]:
    return [value if there else None for value, there in zip(values, valid.tolist(), strict=True)]


@dataclass(eq=False)
class Lists(Prepared):
    """Lists of anything but plain numbers."""

    _values: Prepared
    _offsets: NDArray[np.generic]
    _valid: NDArray[np.bool_] | None

    def take(self, rows: Rows) -> list[object]:
        taken: list[object] = []
        for row in rows.tolist():
            if self._valid is not None and not self._valid[row]:
                taken.append(None)
            else:
                taken.append(list(self._values.take(np.arange(self._offsets[row], self._offsets[row + 1]))))
        return taken


@dataclass(eq=False)
class Arrays(Lists):
    """Lists of numbers."""

    _values: Numbers

    def take(self, rows: Rows) -> list[object]:
        starts, stops = self._offsets[rows].tolist(), self._offsets[rows + 1].tolist()
        values, present = self._values.array, self._values.valid
        # Any: arrays, then lists where numbers are missing.
        taken: list[Any] = [values[start:stop].copy() for start, stop in zip(starts, stops, strict=True)]
        if present is not None:
            spans = zip(taken, starts, stops, strict=True)
            taken = [_with_gaps(value, present[start:stop]) for value, start, stop in spans]
        return taken if self._valid is None else _with_nulls(taken, self._valid[rows])


@dataclass(eq=False)
class Dicts(Prepared):
    """Structs."""

    _fields: dict[str, Prepared]
    _valid: NDArray[np.bool_] | None

    def take(self, rows: Rows) -> list[object]:
        columns = [field.take(rows) for field in self._fields.values()]
        taken: list[object] = [
            dict(zip(self._fields, [column[place] for column in columns], strict=True)) for place in range(len(rows))
        ]
        return taken if self._valid is None else _with_nulls(taken, self._valid[rows])


@dataclass(eq=False)
class Objects(Prepared):
    """Values that pyarrow turns into Python objects, such as decimals."""

    _array: Array

    def take(self, rows: Rows) -> list[object]:
        if len(rows) <= _FEW:
            return [self._array[row].as_py() for row in rows.tolist()]
        taken: list[object] = self._array.take(pyarrow().array(rows)).to_pylist()
        return taken


@dataclass(eq=False)
class Texts(Objects):
    """Strings or bytes. A batch often needs one value per row group; `one` slices it out of Arrow's memory."""

    def __post_init__(self) -> None:
        types, kind = pyarrow().types, self._array.type
        _, offsets, data = self._array.buffers()
        is_large = types.is_large_string(kind) or types.is_large_binary(kind)
        size = 8 if is_large else 4
        first, stop = self._array.offset * size, (self._array.offset + len(self._array) + 1) * size
        # An empty array may lack both buffers.
        bounds = memoryview(bytes(size) if offsets is None or not offsets.size else offsets)
        self._bounds = bounds[first:stop].cast("q" if is_large else "i")
        self._data = memoryview(b"" if data is None else data)
        self._valid = _valid(self._array)
        self._is_text = bool(types.is_string(kind) or types.is_large_string(kind))

    def one(self, row: int) -> str | bytes | None:
        """Return the value of one row, in half the time that pyarrow takes."""
        if self._valid is not None and not self._valid[row]:
            return None
        data = self._data[self._bounds[row] : self._bounds[row + 1]]
        return str(data, "utf-8") if self._is_text else bytes(data)


# Any: what an attribute of a prepared column holds.
def memory_of(held: Any) -> Iterator[tuple[int, int]]:
    """Yield address and size of each piece of memory that a prepared column holds."""
    if isinstance(held, np.ndarray):
        yield held.__array_interface__["data"][0], held.nbytes
    elif isinstance(held, Prepared):
        for one in vars(held).values():
            yield from memory_of(one)
    elif isinstance(held, dict):
        for one in held.values():
            yield from memory_of(one)
    elif hasattr(held, "buffers"):
        yield from ((buffer.address, buffer.size) for buffer in held.buffers() if buffer is not None)


def pyarrow(module: str = "pyarrow") -> ModuleType:
    """Return pyarrow or one of its modules. Raises MissingExtra: it is not installed."""
    return require(module, extra="parquet", purpose="Reading Parquet, Arrow and CSV files")


def whole(column: object) -> Array:
    """Return a column as one array: pyarrow may have split it into chunks."""
    pa = pyarrow()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # strings that are too long for one array
        kinds = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
        column = column.cast(kinds.get(column.type, column.type)).combine_chunks()
    return column


def prepared(array: Array) -> Prepared:
    """Prepare a pyarrow array for taking samples."""
    pa = pyarrow()
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return _fixed(array.storage, _tensor_shape(kind), _tensor_order(kind))
    if isinstance(kind, pa.BaseExtensionType):
        return prepared(array.storage)
    if pa.types.is_dictionary(kind):
        return prepared(array.dictionary_decode())
    if is_number(kind):
        return Numbers(_numbers(array), _valid(array))
    if pa.types.is_fixed_size_list(kind):
        return _fixed(array, (kind.list_size,), None)
    if pa.types.is_struct(kind):
        fields = {kind.field(number).name: prepared(array.field(number)) for number in range(kind.num_fields)}
        return Dicts(fields, _valid(array)) if len(fields) == kind.num_fields else Objects(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values, offsets, valid = array.values, array.offsets.to_numpy(), _valid(array)
        if is_number(kind.value_type):
            return Arrays(Numbers(_numbers(values), _valid(values)), offsets, valid)
        return Lists(prepared(values), offsets, valid)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):  # these do not support take
        array = array.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())
    if array.type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return Texts(array)
    return Objects(array)


def is_number(kind: object) -> bool:
    """True for types whose values fit in NumPy arrays."""
    types = pyarrow().types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_timestamp(kind)
        or types.is_date(kind)
        or types.is_duration(kind)
    )


def is_vector_number(kind: object) -> bool:
    """True for types whose columns can be combined into a vector."""
    types = pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def shape_of(kind: DataType) -> tuple[int, ...] | None:
    """Return the array shape of a value of this type; None if it is not an array, or its length varies."""
    pa = pyarrow()
    if isinstance(kind, pa.FixedShapeTensorType):
        return _tensor_shape(kind)
    if pa.types.is_fixed_size_list(kind):
        inner = shape_of(kind.value_type)
        return None if inner is None else (kind.list_size, *inner)
    return () if is_number(kind) else None


def text_of(kind: DataType) -> str:
    """Return a short, readable name of a type."""
    shape = shape_of(kind)
    while shape and not is_number(kind):
        kind = kind.value_type
    if shape is None:
        return str(kind)
    name = "float64" if str(kind) == "double" else "float32" if str(kind) == "float" else str(kind)
    return f"{name.replace('halffloat', 'float16')}[{', '.join(map(str, shape))}]"


def _tensor_shape(kind: DataType) -> tuple[int, ...]:
    shape = tuple(kind.shape)
    return shape if kind.permutation is None else tuple(shape[axis] for axis in kind.permutation)


def _tensor_order(kind: DataType) -> tuple[tuple[int, ...], list[int]] | None:
    return None if kind.permutation is None else (tuple(kind.shape), list(kind.permutation))


def _numbers(array: Array) -> NDArray[np.generic]:
    if array.null_count:
        array = array.fill_null(0) if not pyarrow().types.is_boolean(array.type) else array.fill_null(False)
    if pyarrow().types.is_date(array.type) or pyarrow().types.is_timestamp(array.type):
        units = {"date32[day]": "D", "date64[ms]": "ms"}
        unit = units.get(str(array.type)) or array.type.unit
        plain: NDArray[np.generic] = array.view("int32" if unit == "D" else "int64").to_numpy()
        return plain.astype("datetime64[D]") if unit == "D" else plain.view(f"datetime64[{unit}]")
    numbers: NDArray[np.generic] = array.to_numpy(zero_copy_only=False)
    return numbers


def _valid(array: Array) -> NDArray[np.bool_] | None:
    if not array.null_count:
        return None
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _fixed(array: Array, shape: tuple[int, ...], order: tuple[tuple[int, ...], list[int]] | None) -> Prepared:
    """Prepare fixed-size lists: null rows have values too."""
    count, length, valid = len(array), array.type.list_size, _valid(array)
    values = prepared(array.values.slice(array.offset * length, count * length))
    if not isinstance(values, Numbers):
        return Lists(values, np.arange(count + 1, dtype=np.int64) * length, valid)
    inner = values.array.shape[1:]
    present = None
    if values.valid is not None or values.present is not None:
        present = np.ones(values.array.shape, np.bool_) if values.present is None else values.present.copy()
        if values.valid is not None:
            present[~values.valid] = False
    placed = (count, *(shape if order is None else order[0]), *inner)
    axes = None if order is None else (0, *(1 + axis for axis in order[1]))
    numbers = values.array.reshape(placed)
    numbers = numbers if axes is None else numbers.transpose(axes)
    if present is not None:
        present = present.reshape(placed)
        present = present if axes is None else present.transpose(axes)
        if valid is not None:
            present = present | ~valid.reshape(-1, *[1] * (present.ndim - 1))
    made = Numbers(numbers, valid, None if present is None or present.all() else present)
    return Nested(made, array) if inner and not made.is_whole else made
