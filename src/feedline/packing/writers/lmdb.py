"""Writes an LMDB environment in a single file: keys are the numbers of samples, values are records.

Samples, and the note of a checkpoint, are one transaction: either all of it is there or nothing. The environment is
opened anew after each, because what LMDB remembers of free pages would otherwise depend on how long the process runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from feedline import records
from feedline._optional import require
from feedline.errors import CorruptSource
from feedline.packing.schema import Column, Sample, Schema, Unfit
from feedline.packing.writers.contract import Layout, Summary, Writer, sync_folder

META = b"__feedline__"
_NOTE = b"\0note"
"""Before all samples, so that these can be appended. Gone when the output is finished."""
_MAP_BYTES = 1 << 40
"""Of addresses, not of memory or disk. The same everywhere, as it becomes part of the file."""
_MOST_BYTES = (1 << 32) - 1
"""Of a value: LMDB counts them in 32 bits."""
_PAGE_BYTES = 1 << 16
"""At least as large as a page of any system."""


def key_of(number: int) -> bytes:
    """Return the key of a sample."""
    return b"%012d" % number


class LmdbWriter(Writer):
    """Appends records."""

    format = "lmdb"

    def __init__(self, path: Path, layout: Layout) -> None:
        super().__init__(path, layout)
        # Any: objects of a library without types.
        self._environment: Any = None
        self._transaction: Any = None
        self._count = 0
        self._is_finished = False

    @classmethod
    def cannot_hold(cls, column: Column) -> str:
        return ""

    def _begin(self) -> None:
        self._count = 0
        self._open(_MAP_BYTES)

    def _open(self, map_bytes: int) -> None:
        self._environment = open_environment(self.path, map_size=map_bytes, sync=True)
        self._transaction = self._environment.begin(write=True)

    @classmethod
    def encoded(cls, schema: Schema, sample: Sample) -> bytes:
        try:
            record = records.encode(sample)
        except records.NotARecord as exc:
            raise Unfit(str(exc).rstrip("."), "Turn it into arrays, numbers, strings or bytes in the dataset.") from exc
        if len(record) > _MOST_BYTES:
            raise Unfit(
                f"it takes {len(record):,} bytes, and a value of LMDB at most {_MOST_BYTES:,}", "Use hdf5 or tar."
            )
        return record

    def write(self, samples: Sequence[bytes]) -> None:
        lmdb = require("lmdb", extra="lmdb", purpose="Writing LMDB")
        for record in samples:
            try:
                self._transaction.put(key_of(self._count), record, append=True)
            except (lmdb.MapFullError, lmdb.DiskError) as exc:
                raise OSError(28, f"{exc}") from exc
            self._count += 1

    def checkpoint(self, note: Any) -> None:
        state = {"schema": self.schema.as_json(), "count": self._count, "note": note}
        self._transaction.put(_NOTE, json.dumps(state).encode())
        self._commit()
        self._open(_MAP_BYTES)

    def _commit(self) -> None:
        lmdb = require("lmdb", extra="lmdb", purpose="Writing LMDB")
        transaction, self._transaction = self._transaction, None
        try:
            transaction.commit()
        except lmdb.Error as exc:
            raise OSError(28, f"{exc}") from exc
        self.close()

    def resume(self) -> Any:
        if not self.path.exists():
            return None
        self._open(_MAP_BYTES)
        saved = self._transaction.get(_NOTE)
        meta = self._transaction.get(META)
        if saved is None and meta is None:
            self.close()
            return None
        self._is_finished = meta is not None
        state = json.loads(bytes(meta if saved is None else saved))
        self.schema = Schema.from_json(state["fields"] if self._is_finished else state["schema"])
        self._count = state["count"]
        return {"finished": state} if self._is_finished else state["note"]

    def _state(self) -> Any:
        raise NotImplementedError  # `checkpoint` and `resume` are written as a whole

    def _resume(self, state: Any) -> None:
        raise NotImplementedError

    def finish(self, summary: Summary) -> None:
        if self._is_finished:  # it was, and then interrupted before the output got its name
            self.close()
            return
        pages = self._environment.info()["last_pgno"] + 1
        self.close()
        # Whoever opens the file without saying how large it may become takes what it says: no more than it needs.
        self._open(pages * self._page_bytes() + 64 * _PAGE_BYTES)
        self._transaction.delete(_NOTE)
        meta = {**summary.as_json(self.schema), "encoding": "record"}
        self._transaction.put(META, json.dumps(meta).encode(), append=True)
        self._commit()
        sync_folder(self.path.parent)

    def _page_bytes(self) -> int:
        with open_environment(self.path, readonly=True) as environment:
            return int(environment.stat()["psize"])

    def close(self) -> None:
        if self._transaction is not None:
            self._transaction.abort()
        if self._environment is not None:
            self._environment.close()
        self._transaction = self._environment = None


# Any: objects of a library without types, and its options.
def open_environment(path: Path, **options: Any) -> Any:
    """Open an environment, a file or a folder, that nobody else writes.

    Raises:
        CorruptSource: it is to be read, and is cut off: touching what is missing would end the process.
    """
    lmdb = require("lmdb", extra="lmdb", purpose="LMDB")
    environment = lmdb.open(str(path), subdir=path.is_dir(), lock=False, max_dbs=0, **options)
    if options.get("readonly"):
        least = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        size = (path / "data.mdb" if path.is_dir() else path).stat().st_size
        if size < least:
            environment.close()
            raise CorruptSource(f"{path} is cut off: it has {size} bytes, but the database in it {least}.")
    return environment


def read(path: Path) -> Iterator[Sample]:
    """Yield the samples of a file that was finished."""
    with open_environment(path, readonly=True) as environment, environment.begin() as transaction:
        for key, value in transaction.cursor():
            if key != META:
                yield records.decode(value)


def stored(path: Path) -> dict[str, Any] | None:
    """Return what was stored about the samples, None if nothing was."""
    with open_environment(path, readonly=True) as environment, environment.begin() as transaction:
        meta = transaction.get(META)
    found: dict[str, Any] | None = None if meta is None else json.loads(meta)
    return found
