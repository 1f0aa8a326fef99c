"""The shared base of datasets of lines: an index for random access, and streams."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable
from contextlib import ExitStack, closing
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.lines.format import SPACE, LineFormat
from feedline.datasets.formats.lines.index import (
    BLOCK_BYTES,
    PACKED_BYTES,
    FileIndex,
    LineIndex,
    Numbers,
    index_of,
    scan,
)
from feedline.datasets.formats.lines.unpacked import UnpackedBlob
from feedline.datasets.framework import upcoming
from feedline.datasets.framework.block_stream import BlockStream
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.paths import File, Paths
from feedline.datasets.framework.places import Place, found_places, given_paths, local_files
from feedline.datasets.framework.remote_files import is_remote
from feedline.datasets.framework.shard_files import ByteRange, ShardFiles
from feedline.datasets.framework.shard_format import Shards
from feedline.datasets.framework.shard_stream import CommonShardStream
from feedline.datasets.framework.source import Indices, Source, Transform
from feedline.datasets.framework.store import Cache, checked_cache
from feedline.datasets.storage import disk_cache
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.blob import Blob, Version
from feedline.datasets.storage.content import content_of
from feedline.datasets.storage.ranges import side_by_side
from feedline.datasets.storage.remote import Remote, checked_remote
from feedline.datasets.storage.storage import Storage
from feedline.errors import CorruptSource, SourceChanged
from feedline.system.handle import Handle
from feedline.system.shown import counted
from feedline.system.sizes import byte_count, most_bytes

CACHE_BYTES = 64 << 20
"""The most content that a process holds: the operating system keeps plain files in memory anyway."""
PART_BYTES = 1 << 20
_SCANNERS = 8
_CHUNK = 1 << 17
"""Bytes of a compressed file to read at a time: a block often needs no more. A guess."""


def limit_of(max_line_bytes: int | str | None) -> int:
    """Return the option `max_line_bytes=` as a number. Raises BadOption: it is none."""
    return byte_count("max_line_bytes", max_line_bytes) or most_bytes()


class LineSource(Source):
    """Lines of files as samples. Subclasses choose the format."""

    _lazy = ("_known", "_files")
    _groups_at_once = upcoming.AT_ONCE
    """Parts that a stream reads ahead at the same time. Each thread opens files and decompresses them for itself."""
    _endings: tuple[str, ...] = ()

    def __init__(
        self,
        paths: Paths,
        line_format: LineFormat,
        *,
        transform: Transform | None,
        cache: Cache,
        part_bytes: int | str,
        remote: Remote | None,
    ) -> None:
        super().__init__(transform)
        self.paths = given_paths(paths)
        self.format = line_format
        self.remote = checked_remote(remote)
        self.is_remote = any(map(is_remote, self.paths))
        self.cache = checked_cache(cache)
        self.part_bytes = byte_count("part_bytes", part_bytes)
        self._blocks = BoundedCache[int, Block](CACHE_BYTES)
        self._files: list[Place] | None = None
        self._known: _Reader | None = None
        self._lock = Handle(threading.Lock, bool)

    @property
    def files(self) -> list[Place]:
        """The files, found at first use."""
        if self._files is None:
            with closing(Storage(self.remote)) as storage:
                self._files = found_places(self.paths, storage, self._endings)
        return self._files

    @property
    def index(self) -> LineIndex:
        """Where the lines are. The first access reads the index from disk, or reads all files once."""
        return self._reader().index

    def _reader(self) -> _Reader:
        if self._known is None:
            with self._lock.get():
                if self._known is None:
                    self._known = self._found_lines()
        return self._known

    def _found_lines(self) -> _Reader:
        places, remote, cache = self.files, self.remote, self.cache
        with closing(Storage(remote, self._addresses())) as storage:

            def find(place: Place) -> tuple[FileIndex, str]:
                open_file = functools.partial(storage.open, place.address, place.version)
                with closing(open_file()) as blob:
                    found, stamp = index_of(blob, cache), blob.stamp
                if found.is_unpacked:
                    with closing(UnpackedBlob(open_file, cache, int(found.starts[-1]))) as copy:  # which is made now
                        stamp = copy.stamp
                return found, stamp

            found = side_by_side(find, places, _SCANNERS)
        index = LineIndex([one for one, _ in found], skips_blank=self.format.skips_blank)
        return _Reader(places, index, remote, cache, {number: stamp for number, (_, stamp) in enumerate(found)})

    def __len__(self) -> int:
        return len(self.index)

    @property
    def row_group_sizes(self) -> NDArray[np.int64]:
        """How many samples each part of about `part_bytes` has; `feedline.samplers.BlockSampler` needs this."""
        return self.index.group_sizes(self._part_bytes)

    @property
    def _part_bytes(self) -> int:
        """The size of parts: with a disk cache not less than a piece of it, which would be fetched for each part."""
        is_cached = self.is_remote and self.remote.disk_cache is not None
        return max(self.part_bytes, disk_cache.PIECE_BYTES) if is_cached else self.part_bytes

    @overload
    def stream(self, *, shuffle: Literal[False] = False, seed: int = 0, window: int = 4) -> CommonShardStream: ...

    @overload
    def stream(self, *, shuffle: Literal[True], seed: int = 0, window: int = 4) -> BlockStream: ...

    @overload
    def stream(self, *, shuffle: bool, seed: int = 0, window: int = 4) -> CommonShardStream | BlockStream: ...

    def stream(self, *, shuffle: bool = False, seed: int = 0, window: int = 4) -> CommonShardStream | BlockStream:
        """Return an iterable dataset of the same samples.

        In order, it reads the files from beginning to end, decompresses them as it goes, and needs neither index nor
        disk. With `shuffle`, parts of about `part_bytes` come in a new random order in every epoch, and the samples of
        each `window` of parts are shuffled together; `window` parts are held in memory. Raises BadOption: an option has
        an invalid value.
        """
        shuffled = BlockStream(self, shuffle=shuffle, seed=seed, window=window)
        if shuffle:
            return shuffled
        versions = {place.address: place.version for place in self.files if place.version is not None}
        here = [File.at(place.address) for place in self.files if not is_remote(place.address)]
        versions |= {file.path: Version(file.size, str(file.tag)) for file in here}
        return CommonShardStream(Shards(self._addresses(), self.format, self.remote, versions), self.transform)

    def _read(self, indices: Indices) -> list[object]:
        blocks, places = self.index.find(indices)
        found = self._several_blocks(np.unique(blocks).tolist())
        own = list(zip(blocks.tolist(), places.tolist(), strict=True))
        lines = [found[block].line(place) for block, place in own]
        samples, bad = self.format.parse(lines)
        if bad is not None:
            block, place = own[bad.place]
            name, line = self._line(block, found[block].number(place))
            raise bad.error(name, line, lines[bad.place])
        return samples

    def _load_range(self, start: int, stop: int) -> None:
        """Read samples that are needed soon into memory."""
        first, last = self.index.find(np.array([start, stop - 1]))[0].tolist()
        self._several_blocks(list(range(first, last + 1)))

    def _groups_in_memory(self) -> int:
        """Return about how many parts can be in memory at a time."""
        return self._blocks.limit // (2 * self._part_bytes)  # with where their lines begin

    def _line(self, block: int, number: int) -> tuple[str, int]:
        """Return the name of the file and the number of a line of a block, for errors."""
        file, own = self.index.place(block)
        return self.files[file].name, int(self.index.files[file].lines[own]) + number + 1

    def _several_blocks(self, wanted: list[int]) -> dict[int, Block]:
        found = {block: held for block in wanted if (held := self._blocks.get(block)) is not None}
        missing = [block for block in wanted if block not in found]
        if not missing:
            return found
        contents, starts = self._reader().blocks(missing, self.format.limit), self.index.starts
        for block, content in zip(missing, contents, strict=True):
            count = int(starts[block + 1] - starts[block])
            made = found[block] = Block(content, self.format.limit, count, skips_blank=self.format.skips_blank)
            if made.count != count:
                name, line = self._line(block, 0)
                raise CorruptSource(
                    f"{name} has {made.count} samples from line {line} on, where its index has {count}. It was changed "
                    "while it was read, or the index is wrong: give cache=False to do without."
                )
            self._blocks.put(block, made, made.held_bytes)
        return found

    def _addresses(self) -> list[str]:
        """Return the paths and addresses of all files."""
        return [place.address for place in self.files]

    def _stored_in(self) -> Iterable[str]:
        return local_files(self.paths, self._endings)

    def close(self) -> None:
        """Close the files of this process, and drop the blocks that it holds."""
        self._upcoming.close()
        if self._known is not None:
            self._known.close()
        self._blocks.clear()

    def _form(self) -> str:
        return self.format.describe()

    def __repr__(self) -> str:
        if self._known is not None:
            return super().__repr__()
        shown = [shown_address(os.fspath(path)) for path in self.paths]
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        what = repr(shown[0]) if len(shown) == 1 else counted(len(shown), "path")
        return f"{type(self).__name__}({what}, each sample {self._form()}, not read yet{transform})"


class _Reader:
    """Reads blocks of files whose lines were found."""

    def __init__(
        self, places: list[Place], index: LineIndex, remote: Remote, cache: Cache, stamps: dict[int, str]
    ) -> None:
        self.index = index
        addresses = [place.address for place in places]
        self._request_count = remote.requests
        self._storage: Handle[Storage] = Handle(
            functools.partial(Storage, remote, addresses, is_common=True), Storage.close
        )
        opener = functools.partial(_open, self._storage, addresses, index, cache)
        self._files: Handle[ShardFiles] = Handle(
            functools.partial(
                ShardFiles,
                opener,
                remote.requests,
                stamps,
                functools.partial(_has_same_index, self._storage, addresses, index),
            ),
            ShardFiles.close,
            per_thread=True,
        )

    def blocks(self, blocks: list[int], limit: int) -> list[bytes]:
        """Return the contents of blocks; of a line that is longer than the limit, only the beginning.

        Raises SourceChanged: a file has changed since its index was made; SourceError: it cannot be read.
        """
        files = self._files.get()
        plain, packed = list[ByteRange](), list[ByteRange]()
        wanted = [self._range(block, limit) for block in blocks]
        for one in wanted:
            is_packed = self.index.files[one.shard].packing and not self.index.is_unpacked[one.shard]
            (packed if is_packed else plain).append(one)
        contents = dict(zip(plain, files.read(plain), strict=True))
        blobs = {one.shard: files.blob(one.shard) for one in packed}

        def unpacked(one: ByteRange) -> bytes:
            place = self.index.files[one.shard].place(one.start)
            packing = self.index.files[one.shard].packing
            return content_of(blobs[one.shard], place, packing, _CHUNK).take(one.stop - one.start)

        count = 1 if all(blob.is_local for blob in blobs.values()) else self._request_count
        try:
            contents |= zip(packed, side_by_side(unpacked, packed, count), strict=True)
        finally:
            for blob in blobs.values():
                blob.check()  # what was read, or could not be read, may be from another version
        return [contents[one] for one in wanted]

    def _range(self, block: int, limit: int) -> ByteRange:
        file, number = self.index.place(block)
        start, stop = self.index.files[file].starts[number : number + 2].tolist()
        most = limit + 1 + (PACKED_BYTES if self.index.files[file].packing else BLOCK_BYTES)
        return ByteRange(file, start, min(stop, start + most))

    def close(self) -> None:
        self._files.close()
        self._storage.close()


def _open(storage: Handle[Storage], addresses: list[str], index: LineIndex, cache: Cache, number: int) -> Blob:
    """Open a file, or its unpacked copy. Raises SourceChanged: it is not the one that was indexed."""
    known, open_file = index.files[number], functools.partial(storage.get().open, addresses[number])
    blob = UnpackedBlob(open_file, cache, int(known.starts[-1])) if index.is_unpacked[number] else open_file()
    if (blob.size, blob.tag) != (known.size, known.tag):
        blob.close()
        raise SourceChanged(
            f"{blob.name} has changed since its index was made: it had {known.size} bytes and the tag {known.tag}, and "
            f"has {blob.size} and {blob.tag}. Make the dataset again: the index will be, too."
        )
    return blob


def _has_same_index(storage: Handle[Storage], addresses: list[str], index: LineIndex, number: int, blob: Blob) -> bool:
    with ExitStack() as stack:
        if index.is_unpacked[number]:
            blob = stack.enter_context(closing(storage.get().open(addresses[number])))
        made = scan(blob)
    known = index.files[number]
    return all(np.array_equal(value, getattr(known, name)) for name, value in vars(made).items())


class Block:
    """The lines of a block that are samples.

    Args:
        content: the block, whose last line may be cut short if it is longer than the limit.
        limit: the most bytes of a line.
        count: how many samples the index says there are.
        skips_blank: True if blank lines are no samples.
    """

    def __init__(self, content: bytes, limit: int, count: int, *, skips_blank: bool) -> None:
        self.content = content
        codes = np.frombuffer(content, np.uint8)
        ends = np.flatnonzero(codes == 10)
        has_end = content.endswith(b"\n")
        stops = ends if has_end or not content else np.append(ends, len(content))
        starts = np.concatenate([[0], ends + 1])[: len(stops)]
        self._open = -1 if has_end else len(stops) - 1
        """The line that has no end, -1 if all have."""
        self._numbers: Numbers | None = None
        """Which lines are samples; None for all."""
        if skips_blank and (codes[starts] <= 32).any():
            spans = zip(starts.tolist(), stops.tolist(), strict=True)
            numbers = [n for n, (a, b) in enumerate(spans) if content[a:b].strip(SPACE)]
            is_cut = self._open >= 0 and stops[-1] - starts[-1] > limit
            if is_cut and len(numbers) == count - 1:  # what was cut off of the last line is not blank
                numbers.append(self._open)
            self._numbers = np.array(numbers, np.int64)
        self._starts = starts
        self._stops = stops

    def line(self, place: int) -> bytes:
        """Return a line without its end."""
        number = self.number(place)
        line = self.content[int(self._starts[number]) : int(self._stops[number])]
        return line[:-1] if line.endswith(b"\r") and number != self._open else line

    def number(self, place: int) -> int:
        """Return how many lines of the block precede a sample."""
        return place if self._numbers is None else int(self._numbers[place])

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self._starts) if self._numbers is None else len(self._numbers)

    @property
    def held_bytes(self) -> int:
        """The memory that it takes."""
        return len(self.content) + 16 * len(self._starts) + 512
