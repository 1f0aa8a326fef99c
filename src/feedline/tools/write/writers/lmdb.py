"""Write an LMDB environment in a single file: keys are sample numbers, values are records."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feedline.datasets.formats.lmdb.dataset import META_KEY, SUM_BYTES, key_of, sum_of
from feedline.datasets.formats.lmdb.environment import acquire, release
from feedline.memory.sharing import records
from feedline.system.optional import require
from feedline.tools.write.schema import Sample, Schema, Unfit
from feedline.tools.write.writers.contract import Writer
from feedline.types import JsonObject

_MAP_BYTES = 1 << 40
"""Map size: address space, not memory or disk. The same everywhere, because it becomes part of the file."""
_COMMIT_BYTES = 1 << 26
"""Approximate size of a transaction: LMDB holds uncommitted data in memory."""
_PAGE_BYTES = 1 << 16
"""At least as large as a page of any system."""


class LmdbWriter(Writer):
    """Appends records."""

    format = "lmdb"
    holds_none = True
    most_bytes = (1 << 32) - 1  # LMDB counts the bytes of a value in 32 bits

    def _open(self) -> None:
        self._count = self._waiting_bytes = 0
        # Any: objects of an untyped library.
        self._transaction: Any = None
        self._environment: Any = None
        self._open_map(_MAP_BYTES)

    def _open_map(self, map_bytes: int) -> None:
        lmdb = require("lmdb", extra="lmdb", purpose="Writing LMDB")
        self._environment = lmdb.open(str(self.path), subdir=False, lock=False, map_size=map_bytes, sync=False)
        self._transaction = self._environment.begin(write=True)

    @classmethod
    def encoded(cls, schema: Schema, sample: Sample) -> bytes:
        try:
            record = records.encode(sample)
        except records.NotARecord as exc:
            raise Unfit(str(exc).rstrip("."), "Turn it into arrays, numbers, strings or bytes in the dataset.") from exc
        if len(record) > cls.most_bytes - SUM_BYTES:
            raise Unfit(
                f"it takes {len(record):,} bytes, but an LMDB value has at most {cls.most_bytes:,}", "Use hdf5 or tar."
            )
        return record

    def write(self, samples: Sequence[bytes]) -> None:
        lmdb = require("lmdb", extra="lmdb", purpose="Writing LMDB")
        for record in samples:
            key = key_of(self._count)
            try:
                self._transaction.put(key, record + sum_of(key, record), append=True)
            except (lmdb.MapFullError, lmdb.DiskError) as exc:
                raise OSError(errno.ENOSPC, f"{exc}") from exc
            self._count += 1
            self._waiting_bytes += len(record)
        if self._waiting_bytes >= _COMMIT_BYTES:
            self._commit()
            self._transaction = self._environment.begin(write=True)

    def _commit(self) -> None:
        lmdb = require("lmdb", extra="lmdb", purpose="Writing LMDB")
        transaction, self._transaction, self._waiting_bytes = self._transaction, None, 0
        try:
            transaction.commit()
        except lmdb.Error as exc:
            raise OSError(errno.ENOSPC, f"{exc}") from exc

    def finish(self, summary: JsonObject) -> None:
        self._commit()
        pages, page_bytes = self._environment.info()["last_pgno"] + 1, self._environment.stat()["psize"]
        self.close()
        # A program that opens the file without a map size uses the stored one, so store no more than needed.
        self._open_map(pages * page_bytes + 64 * _PAGE_BYTES)
        meta = json.dumps(self.sealed(summary, encoding="record"))
        self._transaction.put(META_KEY, meta.encode(), append=True)
        self._commit()
        self.close()

    def close(self) -> None:
        if self._transaction is not None:
            self._transaction.abort()
        if self._environment is not None:
            self._environment.close()
        self._transaction = self._environment = None


def stored(path: Path) -> JsonObject | None:
    """Return the stored summary; None if there is none. Raises CorruptSource: the database is damaged."""
    environment = acquire(str(path))
    try:
        with environment.reading() as transaction:
            meta = transaction.get(META_KEY)
            found: dict[str, object] | None = None if meta is None else json.loads(bytes(meta))
    finally:
        release(environment)
    return found
