"""The shared base of Parquet and Arrow datasets: samples are read by the row group.

It warns if the same row groups are decoded again and again.
"""

from __future__ import annotations

import functools
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.parquet.block import Block, columns_of
from feedline.datasets.formats.parquet.layout import (
    Footer,
    Group,
    Layout,
    checked_condition,
    condition_of,
    kept_groups,
    mask_of,
)
from feedline.datasets.formats.parquet.values import prepared, pyarrow, text_of, vectors, whole
from feedline.datasets.framework import upcoming
from feedline.datasets.framework.block_stream import BlockStream
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.form import Form, VectorFields, check_fields
from feedline.datasets.framework.paths import File, Paths, found_files
from feedline.datasets.framework.places import given_paths, local_files
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform
from feedline.datasets.storage.ranges import side_by_side
from feedline.errors import CorruptSource, FeedlineError, PerformanceWarning, SourceError, warn_user
from feedline.system.failures import words
from feedline.system.sizes import byte_count

if TYPE_CHECKING:
    from pyarrow import DataType, Schema, Table

CACHE_BYTES = 256 << 20
"""Default limit for row groups in memory, per process."""

_AT_ONCE = 8
"""Row groups of remote files that are read at the same time, each with several requests. A guess."""

_OWN_BYTES = 8192
"""Overhead of a cached row group besides its data. A guess: it bounds the number of row groups that hold mapped memory;
a process can have some ten thousand maps."""

_LATEST_S = 5.0
"""Seconds spent on repeated decoding before a warning is given."""
_SHARE = 1.5
"""Warn if rows decoded exceed rows used by this factor. Workers that divide small row groups in order, each taking
different ones in every epoch, decode as many rows as they use."""

_PASS = 0.9
"""Fraction of all row groups. Once a process has needed this many, the next repeated one begins a new pass. A guess:
shuffled batches of several workers need most row groups in each epoch, not all of them."""


class RowGroupSource(TableSource):
    """A dataset of files that are read by the row group.

    Subclasses implement how to inspect a file and read one of its row groups.
    """

    _lazy: tuple[str, ...] = ("_known", "_opened", "_waste")
    _endings: tuple[str, ...] = ()
    _module = "pyarrow"
    """The module that must be installed."""
    _most_open = 64
    """Limit on cached file state, such as maps: a number of files; for Parquet, bytes of footers."""
    _groups_at_once = upcoming.MOST
    """Row groups that a stream reads ahead at the same time."""
    _inspected_at_once = 8
    """Files that are inspected concurrently at first use. A guess."""

    def __init__(
        self,
        paths: Paths,
        fields: VectorFields = None,
        *,
        filters: object = None,
        transform: Transform | None = None,
        cache_bytes: int | str = CACHE_BYTES,
    ) -> None:
        super().__init__(transform)
        pyarrow(self._module)
        self.paths = given_paths(paths)
        check_fields(fields)
        self.fields = fields
        self.filters = filters
        self.cache_bytes = byte_count("cache_bytes", cache_bytes, least=0)
        self._blocks = BoundedCache[int, Block](self.cache_bytes)
        self._opened = BoundedCache[str, Any](self._most_open)  # Any: footers, or maps
        """Cached state of files. A map inherited through a fork is as good as the parent's."""
        self._known: Layout | None = None
        self._waste = Waste()

    def _found(self) -> Sequence[str | File]:
        """Return the files of the dataset: their paths, or `File` objects if already known."""
        return found_files(self.paths, self._endings)

    def _at(self, path: str) -> File:
        """Inspect a file. Raises SourceError: it does not exist, or cannot be inspected."""
        return File.at(path)

    @abstractmethod
    def _schema_and_counts(self, file: File) -> tuple[object, list[int]]:
        """Return the schema of a file, and the number of rows in each row group."""

    @abstractmethod
    def _decoded(self, file: File, number: int, names: list[str]) -> Table:
        """Read columns of a row group as a pyarrow table."""

    def _masks(self, footer: Footer, condition: object) -> list[tuple[int, object]]:
        """Return, for row groups by number, which of their rows match a condition, a pyarrow expression."""
        names = list(footer.types)
        tables = ((group.number, self._decoded(footer.file, group.number, names)) for group in footer.groups)
        return [(group, mask_of(table, condition)) for group, table in tables]

    def _load(self, file: File, number: int, names: list[str]) -> tuple[list[object], tuple[int, int]]:
        """Read columns of a row group.

        Returns:
            The columns as pyarrow arrays, and two addresses. Memory between them is mapped from a file, so keeping it
            costs nothing.
        """
        table = self._decoded(file, number, names)
        return [table.column(name) for name in names], (0, 0)

    def _touch(self, files: set[int]) -> None:
        """Raise if files have changed; called before every read with the indices of the files."""

    @property
    def _layout(self) -> Layout:
        if self._known is None:
            files = self._found()
            condition = condition_of(self.filters)

            def inspect(numbered: tuple[int, str | File]) -> Footer:
                number, found = numbered
                file = found if isinstance(found, File) else self._at(found)
                with reading(file, f"looking at {file.path!r}"):
                    schema, counts = self._schema_and_counts(file)
                    groups = [Group(number, group, count) for group, count in enumerate(counts) if count]
                    return Footer(file, types_of(schema, file), groups)

            def keep(numbered: tuple[int, Footer]) -> Footer:
                number, footer = numbered
                with reading(footer.file, f"looking at {footer.file.path!r}"):
                    masks = functools.partial(self._masks, footer, condition)
                    found = checked_condition(masks, condition, footer.file, list(footer.types))
                    return replace(footer, groups=kept_groups(found, number))

            footers = side_by_side(inspect, list(enumerate(files)), self._inspected_at_once)
            if condition is not None:
                footers = side_by_side(keep, list(enumerate(footers)), self._inspected_at_once)
            self._known = Layout(footers, self.fields)
        return self._known

    @property
    def _shape(self) -> Form:  # type: ignore[override]  # found out at first use
        return self._layout.form

    def __len__(self) -> int:
        return len(self._layout)

    @property
    def column_types(self) -> dict[str, object]:
        """The pyarrow type of each column of the samples."""
        return {name: self._layout.types[name] for name in self._shape.names}

    @property
    def row_group_sizes(self) -> NDArray[np.int64]:
        """How many samples each row group has, in order; `feedline.samplers.BlockSampler` needs this."""
        return np.diff(self._layout.starts)

    def stream(self, *, shuffle: bool = False, seed: int = 0, window: int = 4) -> BlockStream:
        """Return an iterable dataset of the same samples, which reads row groups in sequence.

        With `shuffle`, row groups come in a new random order in every epoch, and the samples of each `window` of row
        groups are shuffled together. `window` row groups are held in memory. Raises BadOption: an option has an invalid
        value.
        """
        return BlockStream(self, shuffle=shuffle, seed=seed, window=window)

    def _addresses(self) -> list[str]:
        """Return the paths and addresses of all files, for states of streams."""
        return [file.identity for file in self._layout.files]

    def _stored_in(self) -> Iterable[str]:
        return local_files(self.paths, self._endings)

    def close(self) -> None:
        """Drop the row groups that this process has cached. They are read again when a sample needs them."""
        self._upcoming.close()
        self._blocks.clear()
        self._opened.clear()
        self._waste = Waste()

    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        layout = self._layout
        if not len(indices):
            return [[] for _ in self._shape.vectors or self._shape.names]
        self._waste.used += len(indices)
        groups, rows = layout.find(indices)
        present, owners = np.unique(groups, return_inverse=True)
        self._touch({*layout.group_files[present].tolist()})
        blocks = side_by_side(self._block, present.tolist(), _AT_ONCE if self.is_remote else 1)
        return columns_of(blocks, owners, rows, empty)

    def _load_range(self, start: int, stop: int) -> None:
        """Read samples that are needed soon into memory."""
        groups = self._layout.find(np.array([start, stop - 1]))[0].tolist()
        side_by_side(self._block, range(groups[0], groups[1] + 1), _AT_ONCE)

    def _groups_in_memory(self) -> int:
        """Return about how many row groups can be in memory at a time, judging by those that are."""
        return self._blocks.limit * len(self._blocks) // max(1, self._blocks.held)

    def _block(self, group: int) -> Block:
        block = self._blocks.get(group)
        return block or self._blocks.load(group, functools.partial(self._read_block, group))

    def _read_block(self, group: int) -> tuple[Block, int]:
        layout, began = self._layout, time.perf_counter()
        file, number = layout.files[layout.group_files[group]], int(layout.group_numbers[group])
        where = f"row group {number} of {file.path!r}"
        with reading(file, f"reading {where}"):
            arrays, mapped = self._load(file, number, list(self._shape.names))
            low, high = mapped
            columns = [whole(array) for array in arrays]
            least, found = layout.least_rows(group), min(map(len, columns), default=0)
            if columns and found < least:  # later reads do not check bounds
                raise CorruptSource(
                    f"R{where[1:]} has {found} rows, but {least} are expected by what the file says of itself. It is "
                    "damaged: make it anew, or leave it out."
                )
            fields = [prepared(column) for column in columns]
            values = self._shape.values_of(fields, lambda names, some: vectors(some, names, where))
            block = Block(values, lambda address: low <= address < high)
        rows = int(layout.starts[group + 1] - layout.starts[group])
        count, seconds = len(layout.group_numbers), time.perf_counter() - began
        self._waste.note_decoded(group, count, rows, seconds, advice=self._advice())
        return block, block.held_bytes + _OWN_BYTES

    def _advice(self) -> str:
        """Return advice for row groups that do not fit into memory."""
        return (
            f"Raise cache_bytes={self.cache_bytes}, which each process may take, shuffle among a few row groups at a "
            "time (feedline.samplers.BlockSampler, or .stream(shuffle=True)), or write smaller row groups."
        )

    def _form(self) -> str:
        form = self._shape
        texts = [text_of(self._layout.types[name]) for name in form.names]
        return form.describe(form.values_of(texts, lambda names, some: some[0].replace("[]", f"[{len(names)}]")))

    def __repr__(self) -> str:
        filters = "" if self.filters is None else f", filters={self.filters}"
        return f"{super().__repr__()[:-1]}{filters})"


@contextmanager
def reading(file: File, doing: str) -> Iterator[None]:
    """Turn pyarrow errors into feedline errors that name the file."""
    try:
        yield
    except FeedlineError:
        raise
    except Exception as exc:  # anything from pyarrow, or from Python given its output, such as names that are not UTF-8
        file.check()  # a concurrent write is the better explanation
        raise CorruptSource(
            f"Something went wrong while {doing} ({file.size} bytes): {words(exc)}. It is cut off, damaged, or no file "
            "of this kind: make it anew, or leave it out."
        ) from exc


def types_of(schema: Schema, file: File) -> dict[str, DataType]:
    """Return the type of each column of a schema. Raises SourceError: several columns have one name."""
    types = dict(zip(schema.names, schema.types, strict=True))
    if len(types) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise SourceError(f"{file.path!r} has several columns {twice!r}. Write it with another name for all but one.")
    return types


class Waste:
    """How many rows one process has decoded, and how many of them it used.

    A process that reads the data in order, or window by window, needs each row group once per pass. Decoding it again
    in the next pass is unavoidable, so only repeats within the same pass count.
    """

    def __init__(self) -> None:
        self._in_pass: set[int] = set()
        self._seconds = 0.0
        self._decoded = 0
        self.used = 0
        self._has_warned = False

    def note_decoded(self, group: int, group_count: int, rows: int, seconds: float, *, advice: str) -> None:
        """Record a decoded row group; warn, once, if most of the work is wasted."""
        if group in self._in_pass and len(self._in_pass) >= _PASS * group_count:
            self._in_pass.clear()
        is_again = group in self._in_pass
        self._in_pass.add(group)
        self._decoded += rows
        self._seconds += seconds if is_again else 0
        if self._has_warned or not is_again or self._seconds < _LATEST_S or self._decoded < _SHARE * self.used:
            return
        self._has_warned = True
        warn_user(
            f"Row groups are decoded again and again: {self._decoded:,} rows for {self.used:,} samples, and "
            f"{self._seconds:.0f} s for what was decoded before. They do not fit into what is kept, and samples are "
            f"asked for in random order. {advice}",
            PerformanceWarning,
        )
