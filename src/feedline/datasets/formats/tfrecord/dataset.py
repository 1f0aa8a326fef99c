"""Random access to the records of TFRecord files."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import closing

import numpy as np

from feedline.datasets.formats.tfrecord.form import Parse, RecordForm
from feedline.datasets.formats.tfrecord.framing import TRAILER, Records, damaged_record, data_sum, find_records, scan
from feedline.datasets.formats.tfrecord.stream import TFRecordFormat
from feedline.datasets.framework.form import Fields
from feedline.datasets.framework.paths import Paths
from feedline.datasets.framework.places import Place, found_places, given_paths
from feedline.datasets.framework.remote_files import is_remote
from feedline.datasets.framework.shard_files import ByteRange, ShardFiles
from feedline.datasets.framework.shard_format import Shards
from feedline.datasets.framework.shard_stream import ShardStream
from feedline.datasets.framework.source import Indices, Source, Transform
from feedline.datasets.framework.store import Cache, checked_cache
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.ranges import side_by_side
from feedline.datasets.storage.remote import Remote, checked_remote
from feedline.datasets.storage.storage import Storage
from feedline.errors import BadOption
from feedline.system.handle import Handle

ENDINGS = tuple(f".{name}{part}{gz}" for name in ("tfrecord", "tfrecords") for part in ("", "-*") for gz in ("", ".gz"))
"""How the names of TFRecord files end. TensorFlow Datasets appends the number of a shard."""
_SCANNERS = 8
"""Files in which records are looked for at the same time."""


class TFRecordDataset(Source):
    """The records of TFRecord files as a map-style dataset.

    Records that are `tf.train.Example` messages become dicts: integers are int64 arrays, floats are float32 arrays, and
    bytes are bytes, or a list of bytes if a feature has any number of values but one. TensorFlow is not needed.

    The positions of the records are found by reading all lengths, when `len` is first called or a record is first
    read. They are cached for files with 100,000 records or more. Files that are compressed as a whole can only
    be read from beginning to end: see `stream()`.

    Args:
        paths: a file, a folder, a pattern, an address in a store or on a web server, or a list of these.
        fields: which features a sample has, and in what form: a name for the value itself, a tuple of names for tuples,
            a list for dicts. None for a dict of all.
        parse: a function that takes the bytes of a record, for records of another kind; `parse=bytes` returns them.
        transform: applied to each sample.
        checksums: True to compare the checksum of each record that is read; needs the package google-crc32c. None to do
            so if it is installed. The checksums of lengths are always compared.
        cache: True to cache the positions of records in the user's cache folder (`$FEEDLINE_CACHE`), False not to, or a
            folder to cache them in.
        remote: how remote files are read.

    Raises:
        SourceError: a file is missing.
        BadOption: an option is invalid, a feature is missing, or a file is compressed.
        CorruptSource: a file is damaged or cut off.
        MissingExtra: google-crc32c is not installed, and `checksums=True`.

    Example:
        >>> import struct, tempfile
        >>> from feedline.datasets.formats.tfrecord.framing import sum_of
        >>> path = f"{tempfile.mkdtemp()}/a.tfrecord"
        >>> with open(path, "wb") as file:
        ...     for data in (b"first", b"second"):
        ...         length = struct.pack("<Q", len(data))
        ...         _ = file.write(length + struct.pack("<I", sum_of(length)) + data + struct.pack("<I", sum_of(data)))
        >>> dataset = TFRecordDataset(path, parse=bytes)
        >>> len(dataset), dataset[1]
        (2, b'second')
        >>> list(dataset.stream())
        [b'first', b'second']
        >>> dataset.close()
    """

    _lazy = ("_found",)

    def __init__(
        self,
        paths: Paths,
        fields: Fields = None,
        *,
        parse: Parse | None = None,
        transform: Transform | None = None,
        checksums: bool | None = None,
        cache: Cache = True,
        remote: Remote | None = None,
    ) -> None:
        super().__init__(transform)
        self.remote = checked_remote(remote)
        self.is_remote = any(map(is_remote, given_paths(paths)))
        with closing(Storage(self.remote)) as storage:
            self.files = found_places(paths, storage, ENDINGS)
        self.form = RecordForm(fields, parse)
        if checksums is not None and not isinstance(checksums, bool):
            raise BadOption(f"checksums={checksums!r} is not True, False or None.")
        self.checksums = checksums
        self._sum()  # raises now if the package is missing
        self._cache = checked_cache(cache)
        self._found: _Found | None = None
        self._lock = Handle(threading.Lock, bool)

    def _sum(self) -> Callable[[bytes], int] | None:
        return None if self.checksums is False else data_sum(needed=self.checksums is True)

    def stream(self, *, shuffle: bool = False, buffer: int = 1000, seed: int = 0) -> ShardStream:
        """Return an iterable dataset of the same samples, read from beginning to end, also from compressed files.

        The files are divided among ranks and workers. With `shuffle`, they come in a different random order in every
        epoch, and a sample may come up to `buffer` places later than its neighbours. Raises BadOption: an option is
        invalid.
        """
        versions = {file.address: file.version for file in self.files if file.version is not None}
        form = TFRecordFormat(self.form, checksums=self.checksums)
        shards = Shards([file.address for file in self.files], form, self.remote, versions)
        return ShardStream(shards, self.transform, shuffle=shuffle, buffer=buffer, seed=seed)

    def _records(self) -> _Found:
        if self._found is None:
            with self._lock.get():
                if self._found is None:
                    self._found = self._find()
        return self._found

    def _find(self) -> _Found:
        addresses = [file.address for file in self.files]
        storage = Handle(functools.partial(Storage, self.remote, addresses), Storage.close)

        def find(place: Place) -> Records:
            with closing(storage.get().open(place.address, place.version)) as blob:
                return find_records(blob, self._cache)

        return _Found(addresses, side_by_side(find, self.files, _SCANNERS), storage, self.remote.requests)

    def __len__(self) -> int:
        return int(self._records().firsts[-1])

    def _read(self, indices: Indices) -> list[object]:
        sum_of, found = self._sum(), self._records()
        samples = []
        for index, (one, content) in zip(indices.tolist(), found.read(indices), strict=True):
            name, data = found.names[one.shard], content[: -TRAILER.size]
            if sum_of is not None and sum_of(data) != TRAILER.unpack(content[-TRAILER.size :])[0]:
                raise damaged_record(name, one.start, "its data")
            samples.append(self.form.build(data, f"Record {index}, at byte {one.start} of {name},"))
        return samples

    def close(self) -> None:
        """Close all files in this process. The next read opens them again."""
        self._upcoming.close()
        if self._found is not None:
            self._found.close()

    def _stored_in(self) -> list[str]:
        return [file.address for file in self.files if not is_remote(file.address)]

    def _form(self) -> str:
        return repr(self.form)


class _Found:
    """Reads records that were found."""

    def __init__(
        self, addresses: list[str], records: list[Records], storage: Handle[Storage], request_count: int
    ) -> None:
        self.firsts = np.concatenate([[0], np.cumsum([len(one.starts) for one in records], dtype=np.int64)])
        """The index of the first record of each file, and the number of all records."""
        self.names = list(map(shown_address, addresses))
        self._records = records
        self._storage = storage
        stamps = {number: one.stamp for number, one in enumerate(records)}
        opener = functools.partial(_open, storage, addresses, records)
        is_same = functools.partial(_has_same_records, records)
        self._files: Handle[ShardFiles] = Handle(
            functools.partial(ShardFiles, opener, request_count, stamps, is_same), ShardFiles.close, per_thread=True
        )

    def read(self, indices: Indices) -> list[tuple[ByteRange, bytes]]:
        """Return the place and the bytes of records, with their checksums.

        Raises SourceChanged: a file has changed since its records were found; SourceError: it cannot be read.
        """
        numbers = np.searchsorted(self.firsts, indices, side="right") - 1
        wanted = []
        for number, place in zip(numbers.tolist(), (indices - self.firsts[numbers]).tolist(), strict=True):
            records = self._records[number]
            start = int(records.starts[place])
            wanted.append(ByteRange(number, start, start + int(records.sizes[place]) + TRAILER.size))
        return list(zip(wanted, self._files.get().read(wanted), strict=True))

    def close(self) -> None:
        """Close the files of this process."""
        self._files.close()
        self._storage.close()


def _open(storage: Handle[Storage], addresses: list[str], records: list[Records], number: int) -> Blob:
    return storage.get().open(addresses[number], records[number].version)


def _has_same_records(records: list[Records], number: int, blob: Blob) -> bool:
    made, known = scan(blob), records[number]
    return np.array_equal(made.starts, known.starts) and np.array_equal(made.sizes, known.sizes)
