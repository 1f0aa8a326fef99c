"""Shards that begin with a table of where their samples are, listed in an index.json; MDS and LitData use this layout.

A shard is the number of its samples, one more offset than that, and the samples, one after the other. All numbers are
32 bits wide. A shard may be compressed as a whole. Then it is unpacked into memory, and as many shards are kept as fit
into `cache_bytes`. All others are read in place, nearby samples together, from disk or by ranged requests.

`Folder` is the place of a dataset, `OpenShards` what a process has open of it, and `IndexedSource` the source.
"""

from __future__ import annotations

import functools
import json
import os
import posixpath
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.shard_files import ByteRange, ShardFiles
from feedline.datasets.framework.source import Indices, Source, Transform
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.blob import Blob, Version
from feedline.datasets.storage.content import Content, chunks_of
from feedline.datasets.storage.remote import Remote, checked_remote
from feedline.datasets.storage.storage import Storage, local_path, protocol_of
from feedline.errors import BadOption, CorruptSource
from feedline.images.pillow import SPECS
from feedline.system.failures import words
from feedline.system.handle import Handle
from feedline.system.options import checked_flag
from feedline.system.sizes import byte_count, check_size
from feedline.types import JsonObject

INDEX = "index.json"
"""The name of the file that lists the shards of a folder."""
_MOST_BYTES = 1 << 32
"""A shard cannot be larger: its offsets have 32 bits."""
_MOST_INDEX_BYTES = 1 << 30
_TABLE_BYTES = 1 << 24
"""The memory of each process for tables of samples."""
AGAIN = "Write or copy the folder again."

Decoding = Callable[[bytes], object]
"""Makes a value from the bytes of one field."""


@dataclass(frozen=True)
class Shard:
    """A file of samples, as index.json describes it."""

    address: str
    sizes: tuple[int, ...]
    """The uncompressed sizes in bytes that are valid for the shard. LitData has changed what it counts."""
    count: int
    """Number of samples."""
    packing: str | None = None
    """The compression of the file: a name that `Unpacking` knows; None if it is not compressed."""


class Folder:
    """The place of a dataset: a local folder, or the address of one.

    Args:
        path: the folder, or its index.json.
        remote: how it is read in a store.
        cache_bytes: the memory of each process for unpacked shards.
    """

    def __init__(self, path: str | os.PathLike[str], remote: Remote | None, cache_bytes: int | str) -> None:
        given: object = path  # any value from the user
        if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
            raise BadOption(f"path={path!r} is neither a path nor an address.")
        text = os.fspath(path)
        self.path = text if protocol_of(text) else os.path.abspath(local_path(text))
        if posixpath.basename(self.path) == INDEX:
            self.path = posixpath.dirname(self.path)
        self.remote = checked_remote(remote)
        self.cache_bytes = byte_count("cache_bytes", cache_bytes)

    @property
    def name(self) -> str:
        """The path of index.json, without secrets."""
        return shown_address(self._address(INDEX))

    def _address(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def read_index(self) -> JsonObject:
        """Return the content of index.json.

        Raises SourceError: it cannot be read; CorruptSource: it is not a JSON object.
        """
        storage = Storage(self.remote)
        try:
            blob = storage.open(self._address(INDEX))
            check_size(blob.name, blob.size, limit=_MOST_INDEX_BYTES)
            found = json.loads(blob.read(0, blob.size))
            blob.close()
        except (ValueError, RecursionError) as exc:
            raise CorruptSource(f"{self.name} is not complete JSON: {words(exc)}. {AGAIN}") from exc
        finally:
            storage.close()
        if not isinstance(found, dict):
            raise CorruptSource(f"{self.name} is not a JSON object. {AGAIN}")
        return found

    def shard(
        self, name: object, size: object, count: object, packing: str | None = None, *, with_table: bool = True
    ) -> Shard:
        """Return a shard of this folder from untrusted values. Raises CorruptSource: one cannot be right.

        Args:
            name: its name in the folder.
            size: its bytes, not compressed.
            count: its samples.
            packing: its compression.
            with_table: False if the size may or may not include the table at its beginning.
        """
        if type(name) is not str or "\\" in name or "\0" in name or name != posixpath.normpath(name):
            raise CorruptSource(f"{self.name} names the file {name!r:.200}, which is not a file name. {AGAIN}")
        if name == "." or name.startswith(("/", "..")):
            raise CorruptSource(f"{self.name} names the file {name!r:.200}, which is outside of its folder. {AGAIN}")
        if type(size) is not int or type(count) is not int or not 0 <= count <= size <= _MOST_BYTES:
            raise CorruptSource(
                f"{self.name} lists {name} with {size!r:.50} bytes and {count!r:.50} samples, which cannot be right. "
                f"{AGAIN}"
            )
        sizes = (size,) if with_table else (size, size + 8 + 4 * count)
        return Shard(self._address(name), sizes, count, packing)

    def has(self, name: str) -> bool:
        """True if this local folder has a file of this name."""
        return not protocol_of(self.path) and os.path.isfile(self._address(name))


def starts_of(shards: Sequence[Shard]) -> NDArray[np.int64]:
    """Return the index of the first sample of each shard, and the number of all samples."""
    return np.concatenate([[0], np.cumsum([shard.count for shard in shards], dtype=np.int64)]).astype(np.int64)


class OpenShards:
    """The shards that one process has open. Threads may use it at the same time."""

    def __init__(self, shards: Sequence[Shard], remote: Remote, cache_bytes: int) -> None:
        self._shards = shards
        self._starts = starts_of(shards)
        self._storage = Storage(remote)
        self._versions: dict[int, Version] = {}
        """The identity of each shard when it was first opened: shards must not change."""
        self._files = ShardFiles(self._open, remote.requests, has_same_index=self._has_same_table)
        self._tables = BoundedCache[int, NDArray[np.uint32]](_TABLE_BYTES)
        """Where the samples of a shard are."""
        self._unpacked = BoundedCache[int, bytes](cache_bytes)

    def samples(self, indices: Indices) -> list[tuple[int, bytes]]:
        """Return the shard and the bytes of some samples.

        Raises SourceError: a shard is missing; CorruptSource: it is damaged; SourceChanged: it was written to.
        """
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        tables = {number: self._table(number) for number in dict.fromkeys(numbers.tolist())}
        wanted = [
            ByteRange(number, *tables[number][place : place + 2].tolist())
            for number, place in zip(numbers.tolist(), (indices - self._starts[numbers]).tolist(), strict=True)
        ]
        return list(zip(numbers.tolist(), self._contents(wanted), strict=True))

    def size(self, number: int) -> int:
        """Return the bytes of a shard, not compressed."""
        return self._files.blob(number).size if self._shards[number].packing is None else len(self._content(number))

    def read(self, wanted: Sequence[ByteRange]) -> list[bytes]:
        """Return some bytes of shards. Raises CorruptSource: one is shorter."""
        for number, stop in {one.shard: one.stop for one in sorted(wanted)}.items():
            check_size(shown_address(self._shards[number].address), stop, held=self.size(number))
        return self._contents(wanted)

    def _contents(self, wanted: Sequence[ByteRange]) -> list[bytes]:
        unpacked = [one for one in wanted if self._shards[one.shard].packing is None]
        contents = self._files.read(unpacked)
        if len(unpacked) == len(wanted):
            return contents
        plain = iter(contents)
        return [
            next(plain) if self._shards[one.shard].packing is None else self._content(one.shard)[one.start : one.stop]
            for one in wanted
        ]

    def _open(self, number: int) -> Blob:
        blob = self._storage.open(self._shards[number].address, self._versions.get(number))
        self._versions[number] = Version(blob.size, blob.tag)
        return blob

    def _table(self, number: int) -> NDArray[np.uint32]:
        shard = self._shards[number]
        if shard.packing is None:
            blob = self._files.blob(number)
            return self._tables.load(number, lambda: (_table_of(blob, shard), 4 * shard.count))
        content = self._content(number)
        return _offsets(content[: 8 + 4 * shard.count], len(content), shard, shown_address(shard.address))

    def _has_same_table(self, number: int, blob: Blob) -> bool:
        known, shard = self._tables.get(number), self._shards[number]
        if known is None or shard.packing is not None:  # nothing that is kept would be used for the new file
            return True
        return np.array_equal(_table_of(blob, shard), known)

    def _content(self, number: int) -> bytes:
        """Return a compressed shard, unpacked."""
        return self._unpacked.load(number, functools.partial(self._unpack, number))

    def _unpack(self, number: int) -> tuple[bytes, int]:
        shard, blob = self._shards[number], self._files.blob(number)
        # Not more than the size in the index, however large the content is.
        content = Content(chunks_of(blob), blob.name, shard.packing).take(max(shard.sizes) + 1)
        if len(content) not in shard.sizes:
            raise CorruptSource(
                f"{blob.name} does not decompress to {shard.sizes[0]} bytes, its size in {INDEX}. {AGAIN}"
            )
        return content, len(content)

    def close(self) -> None:
        """Close all files and connections."""
        self._files.close()
        self._tables.clear()
        self._unpacked.clear()
        self._storage.close()


class IndexedSource(Source):
    """The samples of shards as a source. Subclasses decode their values.

    Args:
        folder: where the shards are.
        shards: what index.json says of them.
        decode: the decoder of images; None for their bytes.
        transform: applied to each sample.
        allow_pickle: True to decode pickles.
    """

    def __init__(
        self,
        folder: Folder,
        shards: Sequence[Shard],
        *,
        decode: str | None,
        transform: Transform | None,
        allow_pickle: bool,
    ) -> None:
        super().__init__(transform)
        if decode is not None and decode not in SPECS:
            raise BadOption(f"decode={decode!r} is not an image decoder: {', '.join(map(repr, sorted(SPECS)))}.")
        self.decode = decode
        self.allow_pickle = checked_flag("allow_pickle", allow_pickle)
        self.remote = folder.remote
        self.is_remote = bool(protocol_of(folder.path))
        self._name = folder.name
        self._shards = tuple(shards)
        self._starts = starts_of(shards)
        """The index of the first sample of each shard, and the number of all samples."""
        self._open: Handle[OpenShards] = Handle(
            functools.partial(OpenShards, self._shards, folder.remote, folder.cache_bytes), OpenShards.close
        )

    @abstractmethod
    def _decoding_of(self, encoding: str) -> Decoding:
        """Return the function that decodes the values of an encoding. Raises BadOption: it is not read."""

    def _decoding(self, what: str, encoding: str) -> Decoding:
        """Return the same; an error names the value, as `what`, and the dataset."""
        try:
            return self._decoding_of(encoding)
        except BadOption as exc:
            raise BadOption(f"{what} in {self._name} has the encoding {encoding!r:.100}. {words(exc)}.") from exc

    def _shown(self, shard: int) -> str:
        """Return the address of a shard without secrets."""
        return shown_address(self._shards[shard].address)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def close(self) -> None:
        """Close all shards in this process, and drop those that were unpacked."""
        self._upcoming.close()
        self._open.close()

    def _stored_in(self) -> Iterable[str]:
        return [shard.address for shard in self._shards]


def _table_of(blob: Blob, shard: Shard) -> NDArray[np.uint32]:
    """Return where the samples of a shard begin and end. Raises CorruptSource: it is damaged, or another file."""
    if blob.size not in shard.sizes:
        raise CorruptSource(
            f"{blob.name} has {blob.size} bytes, not {shard.sizes[0]} as in {INDEX}: it is cut off, or another file. "
            f"{AGAIN}"
        )
    return _offsets(blob.read(0, min(blob.size, 8 + 4 * shard.count)), blob.size, shard, blob.name)


def _offsets(head: bytes, size: int, shard: Shard, name: str) -> NDArray[np.uint32]:
    """Return where the samples of a shard begin and end. Raises CorruptSource: they are not in the file."""
    if len(head) != 8 + 4 * shard.count:
        raise CorruptSource(f"{name} is too short for its {shard.count} samples: it is cut off. {AGAIN}")
    table = np.frombuffer(head, "<u4")
    offsets = table[1:]
    if table[0] != shard.count:
        raise CorruptSource(f"{name} has {table[0]} samples, not {shard.count} as in {INDEX}. {AGAIN}")
    if offsets[0] < len(head) or offsets[-1] > size or (offsets[1:] < offsets[:-1]).any():
        raise CorruptSource(f"The table at the beginning of {name} is damaged: samples overlap or lie outside. {AGAIN}")
    return offsets
