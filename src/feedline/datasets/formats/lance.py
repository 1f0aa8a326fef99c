"""`LanceDataset`: rows of a Lance dataset, read by Lance itself in a process beside this one.

Lance has threads that a fork leaves behind. In a worker that was forked from a process which had used it, Lance crashes
or hangs in up to half of all cases (pylance 14). So no process of the program ever uses it: each one that reads samples
starts a helper with an interpreter of its own, which sends tables back. Copying them takes little beside Lance's
reads, and a crash inside the library is an error here, not the end of a worker.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.parquet.block import Block, columns_of
from feedline.datasets.formats.parquet.values import prepared, pyarrow, text_of, whole
from feedline.datasets.framework import upcoming
from feedline.datasets.framework.block_stream import BlockStream
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.form import Fields, Form
from feedline.datasets.framework.source import Empty, Indices, TableSource, Transform
from feedline.datasets.storage.addresses import identity_of, shown_address, without_secrets
from feedline.datasets.storage.storage import local_path, protocol_of
from feedline.datasets.storage.systems import without_values
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from feedline.system.handle import ClosedWhenDeleted, Handle
from feedline.system.optional import require
from feedline.system.sizes import byte_count

if TYPE_CHECKING:
    from pyarrow import DataType

_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 8192
"""The most that a stream reads at a time. Guesses."""
_HELPER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); import feedline.datasets.formats.lance as it; "
    "it.serve(int(sys.argv[1]))"
)


class Found(NamedTuple):
    """What a version of a Lance dataset is."""

    version: int
    schema: bytes
    counts: list[int]
    """The rows of each fragment."""
    files: list[str]
    """The paths of the files that hold them, in the dataset. Their names are never used again."""
    size: int
    """The bytes of these files, zero if unknown."""


class LanceDataset(TableSource):
    """The rows of a Lance dataset as a map-style dataset.

    A batch is one read of the columns that you name. Values are those of `ParquetDataset`. The version is fixed when
    the dataset is created: rows that are added, changed or deleted later make no difference, in any worker, until Lance
    removes the files of that version. Lance runs in a helper process, one for each process that reads, because it does
    not survive a fork. Its files have no checksums: some damage gives wrong values.

    Args:
        path: the folder, or its address in a store that Lance reads: `s3://...`, `gs://...`, `az://...`.
        fields: which columns a sample has, and in what form: a name for the value itself, a tuple of names for tuples,
            a list for dicts. None for a dict of all.
        version: the number of the version, or the name of a tag. None for the latest.
        transform: applied to each sample.
        storage_options: Lance's options for the store. Never shown.
        cache_bytes: the memory of each process for what a stream has read. Random reads keep nothing.

    Raises:
        MissingExtra: pylance is not installed.
        SourceError: there is no such dataset or version, or it cannot be read.
        CorruptSource: it is damaged.
        SourceChanged: the dataset was deleted and written anew.
        BadOption: an option has an invalid value.

    Example:
        >>> from feedline.datasets import LanceDataset
        >>> dataset = LanceDataset("people.lance", ("name", "born"))  # doctest: +SKIP
        >>> dataset  # doctest: +SKIP
        LanceDataset(3 samples of (string, int64[]))
        >>> dataset[1], list(dataset.stream())[2]  # doctest: +SKIP
        (('Alan', np.int64(1912)), ('Grace', np.int64(1906)))
    """

    _groups_at_once = upcoming.AT_ONCE

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Fields = None,
        *,
        version: int | str | None = None,
        transform: Transform | None = None,
        storage_options: Mapping[str, str] | None = None,
        cache_bytes: int | str = "256 MB",
    ) -> None:
        super().__init__(transform)
        if importlib.util.find_spec("lance") is None:
            require("lance", extra="lance", purpose="reading Lance datasets")
        if isinstance(version, bool) or not isinstance(version, (int, str, type(None))):
            raise BadOption(f"version={version!r} is neither the number of a version nor the name of a tag.")
        address = os.fspath(path)
        self.is_remote = bool(protocol_of(address))
        self.path = address if self.is_remote else os.path.abspath(local_path(address))
        self.name = shown_address(self.path)
        place = _Place(self.path, dict(storage_options or {}), version)
        self._helper: Handle[_Helper] = Handle(place.open, _Helper.close, close_inherited=True)
        self._found = place.known = self._helper.get().found
        kinds = pyarrow().ipc.read_schema(pyarrow().py_buffer(self._found.schema))
        self._types: dict[str, DataType] = dict(zip(kinds.names, kinds.types, strict=True))
        if not self._types:
            raise CorruptSource(f"{self.name} has no columns: its manifest is damaged. Copy or write it again.")
        self._shape = Form.of(fields, self._types, self.name)
        self._blocks = BoundedCache[int, Block](byte_count("cache_bytes", cache_bytes, least=0))
        self._starts = _starts(self._found)

    @property
    def version(self) -> int:
        """The number of the version that is read."""
        return self._found.version

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _take(self, rows: Indices) -> Block:
        if self._helper.get().has_ended:
            self._helper.close()
        table = self._helper.get().take(rows, list(dict.fromkeys(self._shape.names)))
        if table.num_rows != len(rows):
            raise SourceError(f"Lance returned {table.num_rows} rows of {self.name} where {len(rows)} were wanted.")
        return Block([prepared(whole(table.column(name))) for name in self._shape.names], lambda _: False)

    def _read_columns(self, indices: Indices, empty: Empty) -> list[object]:
        if not len(indices):
            return [[] for _ in self._shape.names]
        rows, places = np.unique(indices, return_inverse=True)
        return columns_of([self._take(rows)], np.zeros(len(places), np.int64), places.astype(np.int64), empty)

    def stream(self, *, shuffle: bool = False, seed: int = 0, window: int = 4) -> BlockStream:
        """Return an iterable dataset of the same samples, which reads parts of fragments in sequence.

        With `shuffle`, parts of at most 8 MB or 8,192 rows come in a new random order in every epoch, and the samples
        of each `window` of parts are shuffled together. Raises BadOption: an option has an invalid value.
        """
        return BlockStream(self, shuffle=shuffle, seed=seed, window=window)

    @property
    def row_group_sizes(self) -> NDArray[np.int64]:
        """How many samples each part has that a stream reads; `feedline.samplers.BlockSampler` takes this too."""
        return np.diff(self._starts)

    def _columns_in_blocks(self, indices: Indices, empty: Empty) -> list[object]:
        if not len(indices):
            return [[] for _ in self._shape.names]
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        present, owners = np.unique(numbers, return_inverse=True)
        return columns_of(list(map(self._block, present.tolist())), owners, indices - self._starts[numbers], empty)

    def _block(self, number: int) -> Block:
        def make() -> tuple[Block, int]:
            block = self._take(np.arange(self._starts[number], self._starts[number + 1]))
            return block, block.held_bytes

        return self._blocks.load(number, make)

    def _load_range(self, start: int, stop: int) -> None:
        """Read samples that are needed soon into memory: one part."""
        self._block(int(np.searchsorted(self._starts, start, side="right")) - 1)

    def _groups_in_memory(self) -> int:
        return self._blocks.limit * len(self._blocks) // max(1, self._blocks.held)

    def _addresses(self) -> list[str]:
        return [f"{identity_of(self.path)}/{file}" for file in self._found.files]

    def _stored_in(self) -> list[str]:
        return [] if self.is_remote else [os.path.join(self.path, file) for file in self._found.files]

    def close(self) -> None:
        """End the helper of this process, and drop what streams have read."""
        self._upcoming.close()
        self._helper.close()
        self._blocks.clear()

    def _form(self) -> str:
        return self._shape.describe([text_of(self._types[name]) for name in self._shape.names])


def _starts(found: Found) -> NDArray[np.int64]:
    """Return where the parts of a stream begin: fragments, or equal parts of them, and the number of rows."""
    rows = max(1, sum(found.counts))
    most = min(_BLOCK_ROWS, max(1, _BLOCK_BYTES * rows // max(1, found.size)))
    starts = [0]
    for count in found.counts:
        parts = -(-count // most)
        starts += [starts[-1] + count * part // parts for part in range(1, parts + 1)]
    return np.array(starts, np.int64)


@dataclass
class _Place:
    """Where a dataset is, and which version of it is read."""

    path: str
    options: dict[str, str] = field(repr=False)
    version: int | str | None
    known: Found | None = None
    """What it was when it was first opened; it must not change."""

    def open(self) -> _Helper:
        """Open it in a helper. Raises SourceError: it cannot be read; SourceChanged: it is another one."""
        helper = _Helper(self)
        if self.known not in (None, helper.found):
            helper.close()
            raise SourceChanged(
                f"{shown_address(self.path)} was deleted and written anew: its version {helper.found.version} has "
                "other files than when the dataset was created. Create it again."
            )
        return helper


class _Helper(ClosedWhenDeleted):
    """The process that reads a dataset with Lance. Threads may use it at the same time."""

    def __init__(self, place: _Place) -> None:
        self._place, self._name = place, shown_address(place.path)
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._pipe, theirs = Pipe()
        number = theirs.fileno()
        command = [sys.executable, "-c", _HELPER, str(number), json.dumps([one for one in sys.path if one])]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=[number], stdin=nothing, stdout=nothing, stderr=nothing)
        theirs.close()
        try:
            version = place.version if place.known is None else place.known.version
            self.found: Found = self._ask(place.path, place.options, version)
        except BaseException:
            self.close()
            raise

    @property
    def has_ended(self) -> bool:
        """True if the process crashed, or was killed."""
        return self._process.poll() is not None

    # Any: pyarrow's tables, and what the helper answers.
    def take(self, rows: Indices, columns: list[str]) -> Any:
        """Return some rows. Raises SourceError: they cannot be read."""
        return pyarrow().ipc.open_stream(self._ask(rows.tolist(), columns)).read_all()

    def _ask(self, *question: object) -> Any:
        try:
            with self._lock:
                try:
                    self._pipe.send(question)
                    is_right, answer = self._pipe.recv()
                except BaseException:  # the answer may still come, and the next question must not get it
                    self.close()
                    raise
        except (EOFError, OSError) as exc:
            raise SourceError(
                f"The process in which Lance reads {self._name} has ended (exit code {self._process.wait()}). Is the "
                "dataset damaged, or too little memory left?"
            ) from exc
        if not is_right:
            said = without_secrets(without_values(answer, self._place.options), self._place.path)
            raise SourceError(f"Lance cannot read {self._name}: {said}")
        return answer

    def close(self) -> None:
        """End the process, unless it belongs to another process than this one."""
        self._pipe.close()
        if self._pid == os.getpid():
            self._process.kill()
            self._process.wait()
        else:
            self._process.returncode = 0  # else Python would warn that it still runs

    def _needs_closing(self) -> bool:
        return "_process" in self.__dict__ and not self._pipe.closed


def serve(descriptor: int) -> None:
    """Open a dataset and read its rows on demand, until the other end of the pipe is closed. Runs in a helper."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Connection(descriptor) as pipe:
        dataset: Any = None  # Any: a `lance.LanceDataset`
        while True:
            try:
                question = pipe.recv()
            except EOFError:
                return
            answer: tuple[bool, object]
            try:
                if dataset is None:
                    dataset, found = _opened(*question)
                    answer = True, found
                else:
                    answer = True, _rows(dataset, *question)
            except BaseException as exc:  # a panic of Rust is not an Exception
                answer = False, f"{type(exc).__name__}: {exc}"
            pipe.send(answer)


# Any: a `lance.LanceDataset`.
def _opened(path: str, options: dict[str, str], version: int | str | None) -> tuple[Any, Found]:
    lance = require("lance", extra="lance", purpose="reading Lance datasets")
    # Lance would take a colon or a percent sign in a local path for a part of an address.
    place = path if protocol_of(path) else Path(path).as_uri()
    dataset = lance.dataset(place, version=version, storage_options=options or None)
    fragments = dataset.get_fragments()
    files = [file for fragment in fragments for file in fragment.data_files()]
    sizes = [file.file_size_bytes for file in files]
    size = sum(sizes) if all(sizes) else 0
    names = [f"data/{file.path}" for file in files]
    counts = [fragment.count_rows() for fragment in fragments]
    return dataset, Found(dataset.version, dataset.schema.serialize().to_pybytes(), counts, names, size)


# Any: the same.
def _rows(dataset: Any, rows: list[int], columns: list[str]) -> object:
    table = dataset.take(rows, columns=columns)
    sink = pyarrow().BufferOutputStream()
    with pyarrow().ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
