"""Random access to the samples of tar shards, through an index."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.abc import memory
from feedline.abc.source import ColumnSource
from feedline.datasets.formats.tar.arrays import view_of_npy
from feedline.datasets.formats.tar.form import Decode, Decoder, TarForm
from feedline.datasets.formats.tar.index import Index, PackedIndexes, ShardIndex, Unread, index_of, scan
from feedline.datasets.formats.tar.members import NO_SUM, sum_of
from feedline.datasets.formats.tar.stream import TarFormat
from feedline.datasets.framework.checksums import damaged
from feedline.datasets.framework.form import Fields
from feedline.datasets.framework.shard_files import ShardFiles
from feedline.datasets.framework.shard_format import Shards
from feedline.datasets.framework.shard_stream import ShardStream
from feedline.datasets.framework.shards import Found, expand
from feedline.datasets.framework.source import Indices, Source, Transform, has_own_samples, is_column, stacked
from feedline.datasets.framework.store import Cache, checked_cache
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.blob import Blob, Version
from feedline.datasets.storage.ranges import side_by_side
from feedline.datasets.storage.remote import Remote, checked_remote
from feedline.datasets.storage.storage import Storage, load_libraries, protocol_of
from feedline.errors import BadOption, CorruptSource, SourceChanged
from feedline.system.handle import Handle
from feedline.system.options import checked_flag
from feedline.system.sizes import SampleSize, byte_count, most_bytes

_SCANNERS = 8


class TarDataset(Source, ColumnSource):
    """The samples in WebDataset shards, tar archives in which files of one name make a sample, as a map-style dataset.

    Samples, fields and values are those of the webdataset package. An index records where each sample is. It is built
    when the length or a sample is first requested, by reading all headers once, and cached on disk. Shards must not be
    compressed as a whole. `stream()` needs no index and also reads compressed shards, from beginning to end.

    Args:
        shards: a path or address, or several: `shard-{000..099}.tar`, `/data/*.tar`, `https://...`, `s3://...`,
            `gs://...`. A folder that `feedline pack` wrote: `s3://bucket/train/`; its manifest and index are read
            instead of listing it and reading headers.
        fields: which fields samples have, as for all sources: a name, a tuple, a list, a dict. `"jpg;png"` selects the
            first of these that a sample has. None for a dict of all, with `__key__` and `__url__`.
        decode: True to decode fields by their names; False for bytes; "pil", "rgb8", "rgb", "torchrgb" and similar
            names to decode images too; a function that takes a field's name, with a leading dot, and its bytes, and
            returns None to leave the field to other decoders; or a list of these.
        transform: applied to each sample.
        cache: True to cache indices in the user's cache folder (`$FEEDLINE_CACHE`), False to disable caching, or a
            folder to cache them in.
        pickle: True to decode fields that are pickles. The author of the shards can then run any code here.
        unique_keys: False to treat a key that recurs later in a shard as another sample, as the webdataset package
            does, instead of raising an error.
        max_field_bytes: the most bytes that a field, and all fields of a sample together, may have once decompressed,
            if they or their shard are compressed, or the shard is remote. `$FEEDLINE_MAX_SAMPLE_BYTES` by default, or 2
            GiB.
        remote: how remote shards are read.

    Raises:
        BadOption: an argument is invalid.
        SourceError: a local pattern fits no file; at first use: a shard is missing, or lacks a field.
        CorruptSource: a shard is damaged.

    Example:
        >>> import io, tarfile, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with tarfile.open(f"{folder.name}/shard-0.tar", "w") as file:
        ...     for name, content in [("a.txt", b"hello"), ("a.cls", b"3"), ("b.txt", b"world"), ("b.cls", b"5")]:
        ...         info = tarfile.TarInfo(name)
        ...         info.size = len(content)
        ...         file.addfile(info, io.BytesIO(content))
        >>> dataset = TarDataset(f"{folder.name}/shard-{{0..0}}.tar", ("txt", "cls"), cache=False)
        >>> len(dataset), dataset[1]
        (2, ('world', 5))
        >>> list(dataset.stream())
        [('hello', 3), ('world', 5)]
        >>> dataset.close()
        >>> folder.cleanup()
    """

    _lazy = ("_index", "_files", "_found")

    def __init__(
        self,
        shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        fields: Fields = None,
        *,
        decode: Decode = True,
        transform: Transform | None = None,
        cache: Cache = True,
        pickle: bool = False,
        unique_keys: bool = True,
        max_field_bytes: int | str | None = None,
        remote: Remote | None = None,
    ) -> None:
        super().__init__(transform)
        self.max_field_bytes = byte_count("max_field_bytes", max_field_bytes) or most_bytes()
        self.unique_keys = checked_flag("unique_keys", unique_keys)
        self.remote = checked_remote(remote)
        self._found = Found(self.remote)
        self.shards = expand(shards, self._found.listed)
        self.is_remote = any(map(protocol_of, self.shards))
        load_libraries(self.shards)
        self._names = [shown_address(shard) for shard in self.shards]
        decoder = Decoder(decode, trusts_pickle=checked_flag("pickle", pickle), limit=self.max_field_bytes)
        self.form = TarForm(fields, decoder)
        self._cache = checked_cache(cache)
        self._index: Index | None = None
        self._lock = Handle(threading.Lock, bool)
        self._storage: Handle[Storage] = Handle(functools.partial(Storage, self.remote, self.shards), Storage.close)
        self._files: Handle[ShardFiles] | None = None
        """The open shards of each thread; None before the index is made."""

    def stream(
        self, *, shuffle: bool | str = False, buffer: int = 1000, seed: int = 0, sticky: bool | None = None
    ) -> ShardStream:
        """Return an iterable dataset of the same samples, which reads shards from beginning to end, without an index.

        The shards, in order, are divided among ranks and workers.

        With `shuffle`, shards come in a different random order in every epoch, and a sample may come up to `buffer`
        places later than its neighbours. `shuffle="shards"` leaves the samples of a shard in their order. With
        `sticky`, each rank reads the same shards in every epoch, so that the shard cache of its machine is of use; this
        is the default if there is one, and several machines. Raises BadOption: an option is invalid.
        """
        if isinstance(shuffle, str) and shuffle != "shards":
            raise BadOption(
                f"shuffle={shuffle!r} is neither True, False nor 'shards'. For an order of all samples, without regard "
                "to shards, give the dataset itself to the loader, with shuffle=True: each sample is a request then."
            )
        form = TarFormat(self.form, max_field_bytes=self.max_field_bytes, unique_keys=self.unique_keys)
        return ShardStream(
            Shards(self.shards, form, self.remote, self._found.versions(self.shards)),
            self.transform,
            shuffle=True if shuffle == "shards" else shuffle,  # type: ignore[arg-type]  # checked there
            buffer=0 if shuffle == "shards" else buffer,
            seed=seed,
            sticky=sticky,
        )

    def __len__(self) -> int:
        return int(self.index.starts[-1])

    @property
    def index(self) -> Index:
        """Where everything is. The first access reads the index from disk, or scans the shards."""
        if self._index is None:
            with self._lock.get():
                if self._index is None:
                    self._index = self._make_index()
        return self._index

    def _make_index(self) -> Index:
        storage = self._storage.get()
        self._found.look_beside(self.shards, storage)
        packed = PackedIndexes(self.shards, self._found, self._storage, self._cache, unique_keys=self.unique_keys)
        found: list[ShardIndex | Unread | None] = list(map(packed.announced, self.shards))

        stamps: dict[int, str] = {}

        def scanned(number: int) -> ShardIndex:
            shard = self.shards[number]
            with closing(storage.open(shard, self._found.listed_versions.get(shard))) as blob:
                stamps[number] = blob.stamp
                return index_of(blob, self._cache, unique=self.unique_keys)

        missing = [number for number, one in enumerate(found) if one is None]
        made = iter(side_by_side(scanned, missing, _SCANNERS))
        index = Index([next(made) if one is None else one for one in found], packed.read)
        if index.starts[-1]:
            self.form.check(index.names, f"{self._names[0]} and the other shards" if len(found) > 1 else self._names[0])
        opener = functools.partial(_open, self._storage, self.shards, index, self._found.listed_versions)
        is_same = functools.partial(_has_same_index, index, self.unique_keys)
        self._files = Handle(
            functools.partial(ShardFiles, opener, self.remote.requests, stamps, is_same),
            ShardFiles.close,
            per_thread=True,
        )
        return index

    def keys(self) -> list[str]:
        """Return the keys of all samples, in order."""
        return [
            self.index.key(shard, place)
            for shard in range(len(self.index))
            for place in range(self.index.shard(shard).count)
        ]

    def _name_of(self, index: int) -> str:
        shard = int(np.searchsorted(self.index.starts, index, side="right")) - 1
        key = self.index.key(shard, index - int(self.index.starts[shard]))
        return f"sample {key!r} in {self._names[shard]}"

    def _read(self, indices: Indices) -> list[object]:
        return self._samples_of(self._begin_reading(indices))

    def _begin_reading(self, indices: Indices) -> list[dict[str, object]]:
        raws, ranges = self._ranges(indices)
        self._fetch(ranges)
        return raws

    def _samples_of(self, ahead: list[dict[str, object]]) -> list[object]:
        return [self.form.build(raw) for raw in ahead]  # not ahead: a user's decoder may draw, or have a state

    def read_columns(self, indices: Indices) -> Any:
        if self.is_remote:
            return None
        checked = self._checked(indices)
        plan = self.form.columns()
        if plan is None or self.transform is not None or has_own_samples(type(self)) or not len(checked):
            return None
        raws, ranges = self._ranges(checked)
        arrays = {name for name, kind in plan if kind == "npy"}
        if sum(one.name in arrays for one in ranges) != len(arrays) * len(raws):
            return None  # a sample lacks a field
        self._fetch(ranges, arrays)
        columns = [_column(raws, name, kind) for name, kind in plan]
        return None if any(column is None for column in columns) else self.form.join(columns)

    # object: samples whose fields have not been read yet.
    def _ranges(self, indices: Indices) -> tuple[list[dict[str, object]], list[Range]]:
        """Return samples without their fields, and the locations of these fields."""
        index = self.index
        wanted = self.form.wanted
        shards = np.searchsorted(index.starts, indices, side="right") - 1
        raws: list[dict[str, object]] = []
        ranges: list[Range] = []
        places = (indices - index.starts[shards]).tolist()
        index.prepare(dict.fromkeys(shards.tolist()), self.remote.requests)
        for row, (shard, place) in enumerate(zip(shards.tolist(), places, strict=True)):
            raw = {"__key__": index.key(shard, place), "__url__": self._names[shard]}
            for number, name, offset, size, checksum in index.fields(shard, place):
                if wanted is None or name in wanted:
                    raw[name] = b""
                    ranges.append(Range(shard, offset, offset + size, raw, name, row, checksum, number))
            raws.append(raw)
        return raws, ranges

    def _fetch(self, ranges: list[Range], viewed: Collection[str] = ()) -> None:
        """Read ranges, and store each in its sample; fields in `viewed` as views.

        Raises CorruptSource: a checksum differs.
        """
        index, files = self.index, self._files
        assert files is not None
        opened = files.get()
        if self.is_remote:
            self._check_sizes(ranges, opened)
        for span, content in opened.spans(ranges):
            view, start = memoryview(content), span.start
            for one in span.ranges:
                if one.checksum != NO_SUM:
                    own = view[one.start - start : one.stop - start]
                    if sum_of(f"{one.sample['__key__']}.{one.name}", own) != one.checksum:
                        raise damaged(one.describe())
                    if opened.blob(one.shard).is_local:  # bytes from a network may differ each time
                        index.note_compared(one.shard, one.number)
                data = view if one.name in viewed else content
                one.sample[one.name] = data[one.start - start : one.stop - start]

    def _check_sizes(self, ranges: list[Range], opened: ShardFiles) -> None:
        """Refuse samples of remote shards that are too large: a server may claim any size."""
        totals = dict[int, SampleSize]()
        for one in ranges:
            if not opened.blob(one.shard).is_local:
                total = totals.setdefault(one.row, SampleSize(self.max_field_bytes, "max_field_bytes="))
                total.add(one.describe, one.stop - one.start)

    def close(self) -> None:
        self._upcoming.close()
        if self._files is not None:
            self._files.close()
        self._storage.close()

    def _form(self) -> str:
        return repr(self.form)

    def __repr__(self) -> str:
        if self._index is not None:
            return super().__repr__()
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        return f"TarDataset({len(self.shards)} shards, each sample {self.form!r}{transform})"


@dataclass(slots=True)
class Range:
    """The bytes of a field, and the sample they belong to."""

    shard: int
    start: int
    stop: int
    sample: dict[str, object]
    name: str
    row: int
    """Position of the sample in the batch."""
    checksum: int
    number: int
    """Number of the field in the shard."""

    def describe(self) -> str:
        return f"{self.sample['__url__']}: field {self.name!r} of sample {self.sample['__key__']!r}"


def _open(
    storage: Handle[Storage], shards: list[str], index: Index, listed_versions: Mapping[str, Version], number: int
) -> Blob:
    """Open a shard. Raises SourceChanged: it is not the one that was indexed."""
    version, is_packed = index.version(number)
    known = version if is_packed and version.tag else listed_versions.get(shards[number])
    blob = storage.get().open(shards[number], known)
    if blob.size != version.size or blob.tag != version.tag != "":
        blob.close()
        since, advice = "its index was made", "Make the dataset again: the index will be, too."
        if is_packed:
            since, advice = "it was packed", "Pack it again, or restore it."
        tag = f" and the tag {version.tag}" if version.tag else ""
        raise SourceChanged(
            f"{blob.name} has changed since {since}: it had {version.size} bytes{tag}, and has {blob.size} and "
            f"{blob.tag}. {advice}"
        )
    return blob


def _has_same_index(index: Index, unique_keys: bool, number: int, blob: Blob) -> bool:
    made, known = scan(blob, unique=unique_keys), index.shard(number)
    places = ("keys", "key_ends", "first", "offsets", "sizes")
    return all(np.array_equal(getattr(made, name), getattr(known, name)) for name in places)


# Any: an array, or a list of strings or bytes.
def _column(raws: list[dict[str, Any]], name: str, kind: str) -> object:
    """Return a field of several samples as a column; None if a value is missing, damaged or of a different kind."""
    try:
        values = [raw[name] for raw in raws]
        if kind == "npy":
            values = [view_of_npy(value) for value in values]
            if any(value is None or value.ndim == 0 for value in values):
                return None
        elif kind == "int":
            values = [int(value) for value in values]
        elif kind == "text":
            values = [value.decode("utf-8") for value in values]
    except (KeyError, ValueError, CorruptSource):
        return None  # reading the sample itself raises the right error
    column = stacked(values, memory.empty)
    return column if is_column(column) else None
