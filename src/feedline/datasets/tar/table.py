"""Shards read in any order, by an index."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any

import numpy as np

from feedline.abc.source import ColumnSource
from feedline.datasets.bounded_cache import BoundedCache
from feedline.datasets.cache_file import Cache
from feedline.datasets.handle import Handle
from feedline.datasets.remote.blob import Blob
from feedline.datasets.source import Indices, Source, Transform
from feedline.datasets.tar.columns import Columns, Unlike
from feedline.datasets.tar.form import TarForm
from feedline.datasets.tar.index import Numbers, ShardIndex, index_of
from feedline.datasets.tar.options import Reading
from feedline.datasets.tar.ranges import Range, coalesced
from feedline.errors import SourceChanged
from feedline.values.shown import shown_address
from feedline.values.sizes import SampleSize

_MOST_OPEN = 64
"""Shards that one thread keeps open. A guess: far below the usual limit of 1,024 files."""
_SCANNERS = 8


class TarTable(Source, ColumnSource):
    """A map-style dataset of the samples in shards; `TarDataset(..., mode="random")` makes it."""

    _lazy = ("_index",)

    def __init__(
        self,
        shards: list[str],
        form: TarForm,
        reading: Reading,
        *,
        transform: Transform | None,
        cache: Cache,
    ) -> None:
        super().__init__(transform)
        self.shards = shards
        self._names = [shown_address(shard) for shard in shards]
        self.form = form
        self.reading = reading
        self._cache = cache
        self._index: _Index | None = None
        self._lock = threading.Lock()
        self._open: Handle[_OpenShards] = Handle(
            functools.partial(_OpenShards, shards, reading), _OpenShards.close, per_thread=True
        )

    def __len__(self) -> int:
        return int(self.index.starts[-1])

    @property
    def index(self) -> _Index:
        """Where everything is. Asked for the first time, it is read from disk, or the shards are gone through."""
        if self._index is None:
            with self._lock:
                if self._index is None:
                    self._index = self._make_index()
        return self._index

    def _make_index(self) -> _Index:
        storage = self.reading.open_storage()

        def get(shard: str) -> ShardIndex:
            blob = storage.open(shard)
            try:
                return index_of(blob, self._cache, unique=self.reading.unique_keys)
            finally:
                blob.close()

        try:
            if len(self.shards) == 1:
                found = [get(self.shards[0])]
            else:
                with ThreadPoolExecutor(min(_SCANNERS, len(self.shards)), "feedline-index") as threads:
                    found = list(threads.map(get, self.shards))
        finally:
            storage.close()
        index = _Index(found)
        if index.starts[-1]:
            self.form.check(index.names, f"{self._names[0]} and the other shards" if len(found) > 1 else self._names[0])
        return index

    def keys(self) -> list[str]:
        """Return the keys of all samples, in order."""
        return [
            self.index.key(shard, place) for shard, one in enumerate(self.index.shards) for place in range(one.count)
        ]

    def _read(self, indices: Indices) -> list[Any]:
        raws, ranges = self._ranges(indices)
        self._fetch(ranges)
        return [self.form.build(raw) for raw in raws]

    def read_columns(self, indices: Indices) -> Any:
        checked = self._checked(indices)
        plan = self.form.columns()
        if plan is None or self.transform is not None or type(self) is not TarTable or not len(checked):
            return None
        raws, ranges = self._ranges(checked)
        arrays = [name for name, kind in plan if kind == "npy"]
        if sum(one.name in arrays for one in ranges) != len(arrays) * len(raws):
            return None  # one lacks a field
        blobs = self._blobs(ranges)
        if not all(blob.is_local for blob in blobs.values()):
            return None
        columns = Columns(plan, raws)
        try:
            for span in coalesced(ranges, is_local=lambda shard: True):
                columns.take(span, blobs[span.shard].read(span.start, span.stop))
            return self.form.join(columns.result())
        except Unlike:
            return None
        finally:
            self._open.get().trim()

    # Any: samples whose fields are still to be read.
    def _ranges(self, indices: Indices) -> tuple[list[dict[str, Any]], list[Range]]:
        """Return samples without their fields, and where these are."""
        index = self.index
        wanted = self.form.wanted
        shards = np.searchsorted(index.starts, indices, side="right") - 1
        raws: list[dict[str, Any]] = []
        ranges: list[Range] = []
        places = (indices - index.starts[shards]).tolist()
        for row, (shard, place) in enumerate(zip(shards.tolist(), places, strict=True)):
            raw = {"__key__": index.key(shard, place), "__url__": self._names[shard]}
            for name, offset, size in index.fields(shard, place):
                if wanted is None or name in wanted:
                    raw[name] = b""
                    ranges.append(Range(shard, offset, offset + size, raw, name, row))
            raws.append(raw)
        return raws, ranges

    def _blobs(self, ranges: list[Range]) -> dict[int, Blob]:
        """Open the shards of some ranges."""
        opened, index = self._open.get(), self.index
        return {shard: opened.get(shard, index.shards[shard]) for shard in dict.fromkeys(one.shard for one in ranges)}

    def _fetch(self, ranges: list[Range]) -> None:
        """Read ranges, those near each other together, and put each where it belongs."""
        blobs = self._blobs(ranges)
        totals: dict[int, SampleSize] = {}
        for one in ranges:
            if not blobs[one.shard].is_local:  # a server may claim any size
                total = totals.setdefault(one.row, SampleSize(self.reading.max_field_bytes, "max_field_bytes="))
                total.add(functools.partial(_described, one, blobs), one.stop - one.start)
        spans = coalesced(ranges, is_local=lambda shard: blobs[shard].is_local)
        if len(spans) > 1 and not all(blob.is_local for blob in blobs.values()):
            with ThreadPoolExecutor(min(self.reading.requests(), len(spans)), "feedline-read") as threads:
                contents = list(threads.map(lambda span: blobs[span.shard].read(span.start, span.stop), spans))
        else:
            contents = [blobs[span.shard].read(span.start, span.stop) for span in spans]
        for span, content in zip(spans, contents, strict=True):
            span.give(content)
        self._open.get().trim()

    def close(self) -> None:
        self._open.close()

    def _form(self) -> str:
        return repr(self.form)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


class _Index:
    """The indices of all shards, one after the other."""

    def __init__(self, shards: list[ShardIndex]) -> None:
        self.shards = shards
        self.starts: Numbers = np.cumsum([0, *(shard.count for shard in shards)], dtype=np.int64)
        """The number of the first sample of each shard, and of all together."""
        self.names = list(dict.fromkeys(name for shard in shards for name in shard.names))

    def key(self, shard: int, place: int) -> str:
        one = self.shards[shard]
        start = one.key_ends[place - 1] if place else 0
        return one.keys[start : one.key_ends[place]].tobytes().decode("utf-8", "surrogateescape")

    def fields(self, shard: int, place: int) -> list[tuple[str, int, int]]:
        """Return the fields of a sample: name, offset, size."""
        one = self.shards[shard]
        own = slice(int(one.first[place]), int(one.first[place + 1]))
        names = one.names
        return [
            (names[number], offset, size)
            for number, offset, size in zip(
                one.fields[own].tolist(), one.offsets[own].tolist(), one.sizes[own].tolist(), strict=True
            )
        ]


class _OpenShards:
    """What one thread has open. Shards that were not used for long are closed when there are too many."""

    def __init__(self, shards: list[str], reading: Reading) -> None:
        self._shards = shards
        self._storage = reading.open_storage()
        self._blobs = BoundedCache[int, Blob](_MOST_OPEN, methodcaller("close"))

    def get(self, shard: int, index: ShardIndex) -> Blob:
        """Return an open shard; it stays open until `trim` is called.

        Raises:
            SourceChanged: it is not the one any more that the index is of.
        """
        blob = self._blobs.get(shard)
        if blob is not None and not _is_replaced(blob):
            return blob
        if blob is not None:
            self._blobs.drop(shard)
        blob = self._storage.open(self._shards[shard])
        if (blob.size, blob.tag) != (index.size, index.tag):
            blob.close()
            raise SourceChanged(
                f"{blob.name} has changed since its index was made: it had {index.size} bytes and the tag "
                f"{index.tag}, and has {blob.size} and {blob.tag}. Make the dataset again: the index will be, too."
            )
        self._blobs.put(shard, blob, trims=False)
        return blob

    def trim(self) -> None:
        """Close those that are too many, the longest unused first."""
        self._blobs.trim()

    def close(self) -> None:
        self._blobs.clear()
        self._storage.close()


def _described(one: Range, blobs: dict[int, Blob]) -> str:
    return f"{blobs[one.shard].name}: field {one.name!r} of sample {one.sample['__key__']!r}"


def _is_replaced(blob: Blob) -> bool:
    """True if an open file was written to; what is far away would have to be asked, and tells while it is read."""
    if not blob.is_local:
        return False
    try:
        blob.check()
    except SourceChanged:
        return True
    return False
