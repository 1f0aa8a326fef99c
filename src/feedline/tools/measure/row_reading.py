"""Finds the library that reads the rows of samples, and times the source of ours that reads the same rows."""

from __future__ import annotations

import cProfile
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from feedline.datasets import ArrayDataset, open_dataset
from feedline.system.timing import Clock
from feedline.tools.measure.measured import LEAST_SAMPLES, Rows

_LIBRARIES = ("pandas", "h5py")
_MOST_FILES = 64
_MOST_BYTES = 64 << 20
"""Larger tables are not read to find out how fast our source is: its first read of a text file is one of all rows."""
_PROFILED_S = 0.5
_LEAST_SHARE = 0.3
"""Our source is timed only if a library takes at least this share of a sample's time."""
_BATCHES = 3
_TABLES = (".csv", ".tsv", ".parquet", ".pq", ".feather", ".arrow")


class TableFiles:
    """The tables that this process has opened with Python's `open` since this was made, as pandas does."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        sys.addaudithook(self._note)  # it stays, in a short-lived process

    def _note(self, event: str, args: tuple[object, ...]) -> None:
        if event == "open" and isinstance(args[0], (str, os.PathLike)) and len(self.paths) < _MOST_FILES:
            path = os.path.abspath(os.fspath(args[0]))
            if path.endswith(_TABLES) and path not in self.paths:
                self.paths.append(path)


# Any, throughout: datasets, samples and objects of other libraries.
@dataclass(frozen=True)
class _Candidate:
    """A source of ours that may read the same rows."""

    source: Any
    code: str
    path: str = ""


def rows_of(
    dataset: Any, ask: Callable[[Any], object], indices: list[Any], size: int, tables: Sequence[str], clock: Clock
) -> Rows | None:
    """Return what reads the rows of a map-style dataset; None if no library that is known does.

    Args:
        dataset: the dataset.
        ask: makes the sample of an index.
        indices: indices of samples that could be made.
        size: the number of samples in a batch.
        tables: the paths of the tables that the process has opened.
        clock: measures the times.
    """
    libraries = [name for name in _LIBRARIES if name in sys.modules]
    if not libraries or not all(isinstance(index, int) for index in indices):
        return None
    with _hdf5_reads() as reads:
        shares = _shares(ask, indices, libraries)
    library = max(shares, key=shares.__getitem__, default="")
    if not library or shares[library] < _LEAST_SHARE:
        return None
    rows = Rows(library, shares[library])
    length = len(dataset)
    if library == "pandas":
        candidates = _tables(dataset, tables, length)
    else:
        candidates = _hdf5(reads)
        for (path, _), chunked in reads.items():
            if chunked.chunk_bytes > rows.chunk_bytes:
                rows = replace(
                    rows, path=path, chunk_rows=chunked.chunk_rows, chunk_bytes=chunked.chunk_bytes,
                    compression=chunked.compression,
                )  # fmt: skip
    for candidate in candidates:
        try:
            if len(candidate.source) < length:
                continue
            row_s = _row_s(candidate.source, indices, size, clock)
        except Exception:  # of a file of any kind: then our source is not recommended
            continue
        return replace(
            rows, code=candidate.code, source=type(candidate.source).__name__, path=candidate.path, row_s=row_s,
            unused=len(candidate.source) - length,
        )  # fmt: skip
    return rows


def _shares(ask: Callable[[Any], object], indices: list[Any], libraries: list[str]) -> dict[str, float]:
    """Make some samples again, and return the share of their CPU time in calls of each library."""
    folders = {name: os.path.dirname(str(sys.modules[name].__file__)) + os.sep for name in libraries}
    profile, until_s = cProfile.Profile(time.thread_time), time.monotonic() + _PROFILED_S
    began_s = time.thread_time()
    try:
        for number, index in enumerate(indices[:LEAST_SAMPLES]):
            if number > 2 and time.monotonic() > until_s:
                break
            profile.runcall(ask, index)
    except Exception:  # a sample that fails now, or another profiler that runs
        return {}
    whole_s = max(time.thread_time() - began_s, 1e-9)
    spent = dict.fromkeys(libraries, 0.0)
    # Any: the entries of the profiler, which typeshed does not describe.
    entries: Any = profile.getstats()
    for entry in entries:
        for call in entry.calls or ():
            for name, folder in folders.items():
                if _is_in(call.code, folder) and not _is_in(entry.code, folder):
                    spent[name] += call.totaltime
    return {name: min(1.0, seconds / whole_s) for name, seconds in spent.items()}


def _is_in(code: Any, folder: str) -> bool:
    return not isinstance(code, str) and code.co_filename.startswith(folder)


@dataclass(frozen=True)
class _Stored:
    """How an HDF5 dataset is stored."""

    chunk_rows: int
    """0 without chunks."""
    chunk_bytes: int
    compression: str


@contextmanager
def _hdf5_reads() -> Iterator[dict[tuple[str, str], _Stored]]:
    """Yield the HDF5 datasets that are read from within the context, by file and name."""
    reads: dict[tuple[str, str], _Stored] = {}
    if "h5py" not in sys.modules:
        yield reads
        return
    kind = sys.modules["h5py"].Dataset
    original = kind.__getitem__

    def read(stored: Any, *args: Any, **options: Any) -> Any:
        key = str(stored.file.filename), str(stored.name).lstrip("/")
        if key not in reads and stored.shape:
            chunk = stored.chunks or (0,)
            size = int(np.prod(chunk)) * stored.dtype.itemsize
            reads[key] = _Stored(chunk[0], size, stored.compression or "")
        return original(stored, *args, **options)

    kind.__getitem__ = read
    try:
        yield reads
    finally:
        kind.__getitem__ = original


def _hdf5(reads: dict[tuple[str, str], _Stored]) -> Iterator[_Candidate]:
    for path in dict.fromkeys(path for path, _ in reads):
        fields = tuple(name for file, name in reads if file == path)
        try:
            source = open_dataset(Path(path), fields=fields)
        except Exception:  # a file that our source does not read
            continue
        yield _Candidate(source, f"dataset = feedline.datasets.HDF5Dataset({path!r}, fields={fields!r})", path)


def _tables(dataset: Any, paths: Sequence[str], length: int) -> Iterator[_Candidate]:
    """Yield sources for the tables that were opened and for frames; those with as many rows as samples first."""
    tables = []
    for path in [path for path in paths if os.path.isfile(path) and os.path.getsize(path) <= _MOST_BYTES]:
        try:
            source = open_dataset(Path(path))
            tables.append((path, source, len(source) == length))
        except Exception:  # a package is missing, or our source does not read it
            continue
    frame_kind = sys.modules["pandas"].DataFrame
    attributes = getattr(dataset, "__dict__", {}).items()
    frames = [(name, value, len(value) == length) for name, value in attributes if isinstance(value, frame_kind)]
    for wanted in (True, False):
        for path, source, fits in sorted(tables, key=lambda one: one[0]):
            if fits is wanted:
                code = f"dataset = feedline.datasets.{type(source).__name__}({path!r})"
                yield _Candidate(source, code, path)
        for name, frame, fits in frames:
            if fits is wanted:
                columns = "{" + f"name: dataset.{name}[name].to_numpy() for name in dataset.{name}" + "}"
                arrays = ArrayDataset({str(column): frame[column].to_numpy() for column in frame})
                yield _Candidate(arrays, f"dataset = feedline.datasets.ArrayDataset({columns})")


def _row_s(source: Any, indices: list[int], size: int, clock: Clock) -> float:
    """Return the time of a row in batches of random order, after a first batch, which may read the whole file."""
    order = iter(indices)
    batches = [batch for _ in range(_BATCHES + 1) if (batch := list(islice(order, size)))]
    batches = batches if len(batches) > 1 else batches * 2
    source.__getitems__(batches[0])
    before = clock.now()
    for batch in batches[1:]:
        source.__getitems__(batch)
    return clock.since(before)[0] / sum(map(len, batches[1:]))
