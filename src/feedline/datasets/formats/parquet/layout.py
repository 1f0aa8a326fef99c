"""Map each sample to its file, row group and row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.parquet.values import is_vector_number, pyarrow, whole
from feedline.datasets.framework.form import Form, VectorFields
from feedline.datasets.framework.paths import File
from feedline.errors import BadOption, SourceError
from feedline.system.failures import words

if TYPE_CHECKING:
    from pyarrow import DataType

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """A row group and the samples in it."""

    file: int
    """The index of its file."""
    number: int
    """Its number in the file."""
    count: int
    """Number of samples in it: the rows that the filter keeps."""
    rows: NDArray[np.uint32] | None = None
    """The rows that the filter keeps; None for all."""


@dataclass(frozen=True)
class Footer:
    """The metadata of one file."""

    file: File
    types: dict[str, DataType]
    """The type of each column, in the order of the file."""
    groups: list[Group]
    """The row groups that contain samples."""


class Layout:
    """The location of every sample.

    It holds a few numbers per row group, plus four bytes per sample if there is a filter. It is built once and sent to
    workers with the dataset. Raises SourceError: files differ in the type of a column, or one lacks a column.
    """

    def __init__(self, footers: Sequence[Footer], fields: VectorFields = None) -> None:
        self.files = [footer.file for footer in footers]
        first = footers[0]
        self.types = dict(first.types)
        self.form = Form.of(fields, first.types, repr(first.file.path), has_vectors=True)
        for name in self.form.names:
            # A column that is entirely null may have been written without a type.
            known = next((footer for footer in footers if str(footer.types.get(name)) != "null"), first)
            for footer in footers:
                _compare(name, known, footer)
            self.types[name] = known.types[name]
        self.form.values_of(self.form.names, lambda names, _: self._check_vector(names))
        groups = [group for footer in footers for group in footer.groups]
        self.group_files = np.array([group.file for group in groups], np.int32)
        self.group_numbers = np.array([group.number for group in groups], np.int32)
        self.starts = np.zeros(len(groups) + 1, np.int64)
        np.cumsum([group.count for group in groups], out=self.starts[1:])
        chosen = [group.rows for group in groups if group.rows is not None]
        self.rows = np.concatenate(chosen) if chosen else None
        """The row of each sample in its row group; None without a filter."""

    def _check_vector(self, names: Sequence[str]) -> None:
        """Raise BadOption if columns of these types cannot form a vector."""
        for name in names:
            if not is_vector_number(self.types[name]):
                raise BadOption(
                    f"Column {name!r} is {self.types[name]}, which cannot be part of a vector: only integers, floats "
                    "and booleans can. Name it as a field of its own in fields=."
                )
        first = names[0]
        other = next((name for name in names if self.types[name] != self.types[first]), None)
        if other is not None:
            raise BadOption(
                f"A vector has one type, but column {first!r} is {self.types[first]} and {other!r} is "
                f"{self.types[other]}. Make one vector for each type, or write the columns with one type."
            )

    def __len__(self) -> int:
        return int(self.starts[-1])

    def least_rows(self, group: int) -> int:
        """Return how many rows a row group needs to contain all of its samples."""
        start, stop = self.starts[group], self.starts[group + 1]
        return int(stop - start if self.rows is None else self.rows[start:stop].max() + 1)

    def find(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row group of each sample, and its row there."""
        groups = np.searchsorted(self.starts, indices, side="right") - 1
        if self.rows is not None:
            return groups, self.rows[indices].astype(np.int64)
        return groups, indices - self.starts[groups]


def _compare(name: str, first: Footer, other: Footer) -> None:
    kind = other.types.get(name)
    if kind is None:
        raise SourceError(
            f"{other.file.path!r} has no column {name!r}, but {first.file.path!r} has. All files of a dataset need the "
            "columns that are read: name those that all have in fields=, or read the files apart."
        )
    if kind != first.types[name] and str(kind) != "null":
        raise SourceError(
            f"Column {name!r} is {first.types[name]} in {first.file.path!r}, but {kind} in {other.file.path!r}. Write "
            "the files with one type, or read them apart and bring them together in a transform."
        )


def condition_of(filters: object) -> object:
    """Return filters as a pyarrow expression; None if there are none."""
    if filters is None:
        return None
    pq = pyarrow("pyarrow.parquet")
    try:
        return pq.filters_to_expression(filters)
    except (ValueError, TypeError, IndexError) as exc:
        raise BadOption(
            f"filters={filters!r} is neither an expression of pyarrow, such as pyarrow.compute.field('x') > 3, nor a "
            f"list of conditions, such as [('x', '>', 3)]: {words(exc)}."
        ) from exc


def checked_condition(act: Callable[[], T], filters: object, file: File, names: list[str]) -> T:
    """Run `act`, and raise BadOption if it fails because of the filter."""
    pa = pyarrow()
    try:
        return act()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError, TypeError) as exc:
        why = words(exc).splitlines()[0].rstrip(".")
        if "FieldRef" in why or "no kernel" in why or isinstance(exc, (TypeError, pa.ArrowTypeError)):
            raise BadOption(
                f"filters={filters!s} cannot be applied to {file.path!r}, whose columns are {names}: {why}."
            ) from exc
        raise


def mask_of(table: object, condition: object) -> object:
    """Return a pyarrow array with, for each row of a table, whether the condition holds."""
    ds = pyarrow("pyarrow.dataset")
    return ds.dataset(table).scanner(columns={"kept": condition}, use_threads=False).to_table().column("kept")


def kept_groups(masks: list[tuple[int, object]], number: int) -> list[Group]:
    """Return row groups with the rows that match the filter; row groups without a match are dropped."""
    groups = []
    for group, mask in masks:
        kept = whole(mask).fill_null(False).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(kept).astype(np.uint32)
        if len(rows):
            groups.append(Group(number, group, len(rows), rows))
    return groups
