"""Base classes and helpers that map-style sources share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.abc.source import AheadSource, ColumnSource
from feedline.datasets.framework.form import Form
from feedline.datasets.framework.upcoming import Upcoming
from feedline.errors import BadOption
from feedline.images.compose import image_transform
from feedline.randomness.scope import TRANSFORM, stage
from feedline.system.failures import add_note
from feedline.system.handle import Handle

Empty = Callable[[tuple[int, ...], np.dtype[np.generic]], NDArray[np.generic]]
"""Allocates an array to fill: in ordinary memory, or directly where the batch belongs."""

_NUMBERS = "biufc"
_TEXTS = {str, bytes}
_PLAIN: dict[type, np.dtype[np.generic]] = {
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    bool: np.dtype(np.bool_),
}


# Any: an array, or a list of values of any kind.
def is_column(column: Any) -> bool:
    """True if the default collate function would produce this column: numbers, or strings or bytes."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind in _NUMBERS and column.dtype.isnative
    return {*map(type, column)} <= _TEXTS


# Any: values of any kind.
def stacked(values: list[Any], empty: Empty) -> object:
    """Stack numbers, or arrays of numbers of one shape and type; return any other values unchanged."""
    kinds = {*map(type, values)}
    if len(kinds) != 1:
        return values
    (kind,) = kinds
    if kind is np.ndarray:
        return _stacked_arrays(values, empty)
    dtype = values[0].dtype if issubclass(kind, np.generic) else _PLAIN.get(kind)
    if dtype is None or dtype.kind not in _NUMBERS:
        return values
    column = empty((len(values),), dtype)
    try:
        column[:] = values
    except OverflowError:  # the collate function raises a clearer error
        return values
    return column


def _stacked_arrays(values: list[NDArray[np.generic]], empty: Empty) -> object:
    dtype, shape = values[0].dtype, values[0].shape
    if dtype.kind not in _NUMBERS or not dtype.isnative:
        return values
    if any(value.shape != shape or value.dtype != dtype for value in values):
        return values
    column = empty((len(values), *shape), dtype)
    for row, value in enumerate(values):
        column[row] = value
    return column


Indices = NDArray[np.int64]
Transform = Callable[[Any], object]
"""Takes a sample and returns another. Any: the function knows what samples are."""


class Source(AheadSource):
    """A map-style dataset that reads the samples of a batch together.

    Subclasses define the number of samples and read them. Their indices are already checked and not negative; they may
    be in any order and may repeat. Subclasses can be pickled, and open nothing before they need it
    (`feedline.system.handle.Handle`).
    """

    _lazy: tuple[str, ...] = ()
    """Attributes derived from the others on first use; fingerprints ignore them."""

    is_remote = False
    """True if reading means waiting for a network."""

    def __init__(self, transform: Transform | None = None) -> None:
        self.transform = checked_transform(transform)
        self._upcoming: Handle[Upcoming] = Handle(Upcoming, Upcoming.close)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def _read(self, indices: Indices) -> list[object]:
        """Return the samples at these indices, before the transform, in as few reads as the store allows."""

    @abstractmethod
    def close(self) -> None:
        """Close everything this process has opened. Reading a sample opens it again."""

    def __getitem__(self, index: object) -> Any:
        return self._several([index])[0]

    def __getitems__(self, indices: Iterable[object]) -> list[Any]:
        """Return the samples at several indices; loaders, including torch's, request batches this way."""
        if type(self).__getitem__ is not Source.__getitem__:  # a subclass defines its own samples
            return [self[index] for index in indices]
        return self._several(indices)

    def _several(self, indices: Iterable[object]) -> list[object]:
        checked = self._checked(indices)
        ahead = self._taken_ahead(checked)
        samples = self._read(checked) if ahead is None else self._samples_of(ahead)
        if self.transform is None:
            return samples
        made: list[object] = []
        try:
            with stage(TRANSFORM):
                made.extend(map(self.transform, samples))  # keeps those before an exception
        except Exception as exc:
            name = self._name_of(int(checked[len(made)]))
            if name:
                add_note(exc, f"It is {name}.")
            raise
        return made

    @property
    def fetches_ahead(self) -> bool:  # type: ignore[override]  # sources may be local or remote
        """True if reading means waiting for a network."""
        return self.is_remote and not has_own_samples(type(self))

    def fetch_ahead(self, indices: Indices) -> None:
        """Begin to read samples that will be requested soon. Loaders call this if the source is remote."""
        self._upcoming.get().begin(indices.tobytes(), lambda: self._begin_reading(self._checked(indices)))

    def _begin_reading(self, indices: Indices) -> object:
        """Read samples ahead, in the form that `_samples_of` takes."""
        return self._read(indices)

    # Any, here and below: samples, or the columns of a table.
    def _taken_ahead(self, indices: Indices) -> Any:
        """Return what was read ahead for these samples; None if they were not announced, or could not be read."""
        return self._upcoming.get().take(indices.tobytes()) if self.is_remote else None

    def _samples_of(self, ahead: Any) -> list[object]:
        return list(ahead)

    def _name_of(self, index: int) -> str:
        """Name a sample, for errors of its transform; "" if its index says enough."""
        return ""

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def _checked(self, indices: Iterable[object]) -> Indices:
        count = len(self)
        array = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices))
        if array.size == 0:
            return np.empty(0, np.int64)
        if array.dtype.kind not in "iu" or array.ndim != 1:
            odd = next((one for one in array.tolist() if type(one) is not int), array.tolist())
            raise TypeError(f"samples of a {type(self).__name__} are numbered, but the index is {odd!r}")
        array = array.astype(np.int64, copy=False)
        low, high = array.min(), array.max()
        if low < -count or high >= count:
            wrong = high if high >= count else low
            raise IndexError(f"index {wrong} is out of range for a {type(self).__name__} of {count} samples")
        return np.where(array < 0, array + count, array) if low < 0 else array

    @property
    def hands_on_images(self) -> bool:
        """True if images keep the form that feedline's transform returned: see `feedline.abc.deferred`."""
        return getattr(self.transform, "defers", False) and not has_own_samples(type(self))

    def _stored_in(self) -> Iterable[str]:
        """Return the paths of the files that hold the samples, except those that attributes already name.

        A cache compares the size and time of each file at the start of an epoch to detect changes.
        """
        return ()

    @abstractmethod
    def _form(self) -> str:
        """Describe a sample for people."""

    def __repr__(self) -> str:
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        return f"{type(self).__name__}({len(self)} samples of {self._form()}{transform})"


class TableSource(Source, ColumnSource):
    """A source whose samples are table rows, read column by column.

    Subclasses write `_read_columns` in place of `_read`.
    """

    _lazy: tuple[str, ...] = ("_has_columns",)
    _has_columns = True
    """False once a subclass has found that the columns of a batch do not all have the form that `is_column` accepts."""

    @abstractmethod
    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        """Return a column for each field.

        A column is an array made by `empty`, with one row per sample and numbers in native byte order; or a list with
        one value per sample.
        """

    _shape: Form
    """Which fields a sample has, and what container holds them."""

    def _build(self, values: Sequence[object]) -> object:
        """Combine the values of a sample, or columns."""
        return self._shape.build(values)

    def _begin_reading(self, indices: Indices) -> object:
        return self._read_columns(indices, np.empty)

    def _samples_of(self, ahead: Any) -> list[object]:
        build = self._build
        return [build(values) for values in zip(*ahead, strict=True)]

    def _read(self, indices: Indices) -> list[object]:
        return self._samples_of(self._read_columns(indices, np.empty))

    def read_columns(self, indices: Indices) -> Any:
        if self.transform is not None or has_own_samples(type(self)):
            return None
        checked = self._checked(indices)
        if not self._has_columns or not len(checked):
            return None  # without reading: collating would read the samples again
        columns = self._taken_ahead(checked)
        return self._built(self._read_columns(checked, memory.empty) if columns is None else columns)

    # Any: columns in the form of a sample.
    def _built(self, columns: list[object]) -> Any:
        """Combine columns, as `read_columns` returns them; None if the default collate function needs samples."""
        return self._build(columns) if all(map(is_column, columns)) else None

    def _columns_in_blocks(self, indices: Indices, empty: Empty) -> list[object]:
        """Return columns as `_read_columns` does, for a stream, which needs all rows of the blocks that they are in."""
        return self._read_columns(indices, empty)


def has_own_samples(kind: type[Source]) -> bool:
    """True if a user's subclass defines its own samples."""
    return kind.__getitem__ is not Source.__getitem__ or kind.__getitems__ is not Source.__getitems__


def checked_transform(transform: Transform | None) -> Transform | None:
    """Return the transform. Raises BadOption: it cannot be called."""
    if transform is not None and not callable(transform):
        raise BadOption(f"transform={transform!r} is not a function that takes a sample and returns another.")
    given: Transform | None = image_transform(transform)
    return given
