"""The shared base of datasets of lines: an index for random access, and streams."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.lines.blocks import Block, BlockReader
from feedline.datasets.formats.lines.format import LineFormat
from feedline.datasets.formats.lines.index import FileIndex, LineIndex, index_of
from feedline.datasets.formats.lines.places import Place, found_places, given_paths
from feedline.datasets.formats.lines.stream import LineStream, ShuffledLines
from feedline.datasets.formats.lines.unpacked import Unpacked, UnpackedFiles
from feedline.datasets.formats.parquet.table import Waste
from feedline.datasets.framework import upcoming
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.cache_file import Cache, checked_cache
from feedline.datasets.framework.paths import Paths, found_files
from feedline.datasets.framework.remote_files import is_remote
from feedline.datasets.framework.source import Indices, Source, Transform
from feedline.datasets.storage import disk_cache
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.remote import Remote, checked_remote
from feedline.datasets.storage.storage import Storage
from feedline.errors import BadOption, CorruptSource
from feedline.system.handle import Handle
from feedline.system.shown import counted
from feedline.system.sizes import byte_count, most_bytes

CACHE_BYTES = 64 << 20
"""Default limit for blocks in memory, per process: the operating system keeps plain files in memory anyway."""
PART_BYTES = 1 << 20
_SCANNERS = 8


def limit_of(max_line_bytes: int | str | None) -> int:
    """Return the option `max_line_bytes=` as a number. Raises BadOption: it is none."""
    return byte_count("max_line_bytes", max_line_bytes) or most_bytes()


class LineSource(Source):
    """Lines of files as samples. Subclasses choose the format."""

    _lazy = ("_indexed", "_files", "_waste")
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
        unpack: Cache,
        cache_bytes: int | str,
        part_bytes: int | str,
        remote: Remote | None,
    ) -> None:
        super().__init__(transform)
        self.paths = given_paths(paths)
        self.format = line_format
        self.remote = checked_remote(remote)
        self.is_remote = any(map(is_remote, self.paths))
        self.cache = checked_cache(cache)
        self.unpack = None
        if not isinstance(unpack, (bool, str, os.PathLike)):
            raise BadOption(f"unpack={unpack!r} is neither True, False nor the path of a folder.")
        if unpack is not False:
            self.unpack = UnpackedFiles(None if isinstance(unpack, bool) else unpack)
        self.cache_bytes = byte_count("cache_bytes", cache_bytes, least=0)
        self.part_bytes = byte_count("part_bytes", part_bytes)
        self._blocks = BoundedCache[int, Block](self.cache_bytes)
        self._files: list[Place] | None = None
        self._indexed: _Indexed | None = None
        self._waste = Waste()
        self._lock = Handle(threading.Lock, bool)

    @property
    def files(self) -> list[Place]:
        """The files, found at first use."""
        if self._files is None:
            storage = Storage(self.remote)
            try:
                self._files = found_places(self.paths, storage, self._endings)
            finally:
                storage.close()
        return self._files

    @property
    def index(self) -> LineIndex:
        """Where the lines are. The first access reads the index from disk, or reads all files once."""
        return self._known.index

    @property
    def _known(self) -> _Indexed:
        if self._indexed is None:
            with self._lock.get():
                if self._indexed is None:
                    self._indexed = self._make_index()
        return self._indexed

    def _make_index(self) -> _Indexed:
        files = self.files
        storage = Storage(self.remote, [file.address for file in files])
        try:
            get = functools.partial(self._index_of, storage)
            if len(files) == 1:
                found = [get(files[0])]
            else:
                with ThreadPoolExecutor(min(_SCANNERS, len(files)), "feedline-index") as threads:
                    found = list(threads.map(get, files))
        finally:
            storage.close()
        index = LineIndex([one for _, one in found], skips_blank=self.format.skips_blank)
        unpacked = {number: copy for number, (copy, _) in enumerate(found) if copy is not None}
        return _Indexed([file.address for file in files], unpacked, index, self.remote, self.format.limit)

    def _index_of(self, storage: Storage, place: Place) -> tuple[Unpacked | None, FileIndex]:
        with closing(storage.open(place.address, place.version)) as blob:
            reopen = functools.partial(_reopened, self.remote, place)
            unpacked = None if self.unpack is None else self.unpack.unpacked(blob, reopen)
            if unpacked is None:
                return None, index_of(blob, self.cache)
        with closing(unpacked.open()) as copy:
            return unpacked, index_of(copy, self.cache)

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
    def stream(self, *, shuffle: Literal[False] = False, seed: int = 0, window: int = 4) -> LineStream: ...

    @overload
    def stream(self, *, shuffle: Literal[True], seed: int = 0, window: int = 4) -> ShuffledLines: ...

    @overload
    def stream(self, *, shuffle: bool, seed: int = 0, window: int = 4) -> LineStream | ShuffledLines: ...

    def stream(self, *, shuffle: bool = False, seed: int = 0, window: int = 4) -> LineStream | ShuffledLines:
        """Return an iterable dataset of the same samples.

        In order, it reads the files from beginning to end, without an index. With `shuffle`, parts of about
        `part_bytes` come in a new random order in every epoch, and the samples of each `window` of parts are shuffled
        together; `window` parts are held in memory. Raises BadOption: an option has an invalid value.
        """
        shuffled = ShuffledLines(self, shuffle=shuffle, seed=seed, window=window)
        if shuffle:
            return shuffled
        return LineStream(self.files, self.format, self.remote, transform=self.transform)

    def _read(self, indices: Indices) -> list[object]:
        blocks, places = self.index.find(indices)
        self._waste.used += len(indices)
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
        return self.cache_bytes // (2 * self._part_bytes)  # with where their lines begin

    def _line(self, block: int, number: int) -> tuple[str, int]:
        """Return the name of the file and the number of a line of a block, for errors."""
        file, own = self.index.place(block)
        return self.files[file].name, int(self.index.files[file].lines[own]) + number + 1

    def _several_blocks(self, wanted: list[int]) -> dict[int, Block]:
        found = {block: held for block in wanted if (held := self._blocks.get(block)) is not None}
        missing = [block for block in wanted if block not in found]
        if not missing:
            return found
        began = time.perf_counter()
        contents, self._waste.went_back = self._known.readers.get().read(missing)
        seconds, starts = time.perf_counter() - began, self.index.starts
        for block, content in zip(missing, contents, strict=True):
            made = found[block] = Block(content, skips_blank=self.format.skips_blank)
            count = int(starts[block + 1] - starts[block])
            if made.count != count:
                name, line = self._line(block, 0)
                raise CorruptSource(
                    f"{name} has {made.count} samples from line {line} on, where its index has {count}. It was changed "
                    "while it was read, or the index is wrong: give cache=False to do without."
                )
            self._blocks.put(block, made, made.held_bytes)
            if self.index.files[self.index.place(block)[0]].packing:
                seconds_each = seconds / len(missing)
                self._waste.note_decoded(block, len(starts) - 1, count, seconds_each, advice=self._advice())
        return found

    def _advice(self) -> str:
        packed = next(place.name for place, one in zip(self.files, self.index.files, strict=True) if one.packing)
        return (
            f"{packed!r} is compressed, so lines are reached from the beginning of their member or frame. Give "
            "unpack=, a folder for decompressed copies that all processes read, or: "
            f"Raise cache_bytes={self.cache_bytes}, which each process may take, read .stream(), or compress the file "
            "in many members or frames (bgzip, or parts that are concatenated)."
        )

    def _addresses(self) -> list[str]:
        """Return the paths and addresses of all files, for states of streams."""
        return [place.address for place in self.files]

    def _stored_in(self) -> Iterable[str]:
        local = [path for path in self.paths if not is_remote(path)]
        return found_files(local, self._endings) if local else ()

    def close(self) -> None:
        """Close the files of this process, and drop the blocks that it has cached."""
        self._upcoming.close()
        if self._indexed is not None:
            self._indexed.readers.close()
        self._blocks.clear()
        self._waste = Waste()

    def _form(self) -> str:
        return self.format.describe()

    def __repr__(self) -> str:
        if self._indexed is not None:
            return super().__repr__()
        shown = [shown_address(os.fspath(path)) for path in self.paths]
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        what = repr(shown[0]) if len(shown) == 1 else counted(len(shown), "path")
        return f"{type(self).__name__}({what}, each sample {self._form()}, not read yet{transform})"


@contextmanager
def _reopened(remote: Remote, place: Place) -> Iterator[Blob]:
    storage = Storage(remote, [place.address])
    try:
        with closing(storage.open(place.address, place.version)) as blob:
            yield blob
    finally:
        storage.close()


class _Indexed:
    """Files whose lines were found.

    Args:
        addresses: the files.
        unpacked: those that are read from decompressed copies, by number.
        index: where their lines are.
        remote: how remote ones are read.
        limit: the most bytes of a line.
    """

    def __init__(
        self, addresses: list[str], unpacked: Mapping[int, Unpacked], index: LineIndex, remote: Remote, limit: int
    ) -> None:
        self.addresses = addresses
        self.unpacked = unpacked
        self.index = index
        opener = functools.partial(
            BlockReader,
            functools.partial(Storage, remote, addresses, is_common=True),
            addresses,
            unpacked,
            index,
            limit=limit,
            request_count=remote.requests,
        )
        self.readers: Handle[BlockReader] = Handle(opener, BlockReader.close, per_thread=True)
