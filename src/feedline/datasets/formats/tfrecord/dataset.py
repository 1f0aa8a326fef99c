"""Random access to the records of TFRecord files."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.tfrecord.form import Parse, RecordForm
from feedline.datasets.formats.tfrecord.framing import TRAILER, Records, damaged_record, data_sum, find_records
from feedline.datasets.formats.tfrecord.stream import TFRecordFormat
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.form import Fields
from feedline.datasets.framework.paths import Paths, found_files
from feedline.datasets.framework.shard_format import Shards
from feedline.datasets.framework.shard_stream import ShardStream
from feedline.datasets.framework.source import Indices, Source, Transform
from feedline.datasets.framework.store import Cache, checked_cache
from feedline.datasets.storage.blob import LocalBlob
from feedline.datasets.storage.remote import Remote
from feedline.errors import BadOption, SourceChanged
from feedline.system.handle import Handle

ENDINGS = tuple(f".{name}{part}{gz}" for name in ("tfrecord", "tfrecords") for part in ("", "-*") for gz in ("", ".gz"))
"""How the names of TFRecord files end. TensorFlow Datasets appends the number of a shard."""
_MOST_OPEN = 64


class TFRecordDataset(Source):
    """The records of TFRecord files as a map-style dataset.

    Records that are `tf.train.Example` messages become dicts: integers are int64 arrays, floats are float32 arrays, and
    bytes are bytes, or a list of bytes if a feature has any number of values but one. TensorFlow is not needed.

    The positions of the records are found by reading all lengths, when `len` is first called or a record is first
    read. They are cached for files with 100,000 records or more. Files that are compressed as a whole can only
    be read from beginning to end: see `stream()`.

    Args:
        paths: a file, a folder, a pattern, or a list of these.
        fields: which features a sample has, and in what form: a name for the value itself, a tuple of names for tuples,
            a list for dicts. None for a dict of all.
        parse: a function that takes the bytes of a record, for records of another kind; `parse=bytes` returns them.
        transform: applied to each sample.
        checksums: True to compare the checksum of each record that is read; needs the package google-crc32c. None to do
            so if it is installed. The checksums of lengths are always compared.
        cache: True to cache the positions of records in the user's cache folder (`$FEEDLINE_CACHE`), False not to, or a
            folder to cache them in.

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
    ) -> None:
        super().__init__(transform)
        self.files = found_files(paths, ENDINGS)
        self.form = RecordForm(fields, parse)
        if checksums is not None and not isinstance(checksums, bool):
            raise BadOption(f"checksums={checksums!r} is not True, False or None.")
        self.checksums = checksums
        self._sum()  # raises now if the package is missing
        self._cache = checked_cache(cache)
        self._found: list[Records] | None = None
        self._lock = Handle(threading.Lock, bool)
        self._open: Handle[BoundedCache[int, LocalBlob]] = Handle(
            functools.partial(BoundedCache[int, LocalBlob], _MOST_OPEN), BoundedCache.clear
        )

    def _sum(self) -> Callable[[bytes], int] | None:
        return None if self.checksums is False else data_sum(needed=self.checksums is True)

    def stream(self, *, shuffle: bool = False, buffer: int = 1000, seed: int = 0) -> ShardStream:
        """Return an iterable dataset of the same samples, read from beginning to end, also from compressed files.

        The files are divided among ranks and workers. With `shuffle`, they come in a different random order in every
        epoch, and a sample may come up to `buffer` places later than its neighbours. Raises BadOption: an option is
        invalid.
        """
        form = TFRecordFormat(self.form, checksums=self.checksums)
        shards = Shards(list(self.files), form, Remote(), {})
        return ShardStream(shards, self.transform, shuffle=shuffle, buffer=buffer, seed=seed)

    @property
    def _records(self) -> list[Records]:
        if self._found is None:
            with self._lock.get():
                if self._found is None:
                    self._found = [find_records(path, self._cache) for path in self.files]
        return self._found

    def _starts(self) -> NDArray[np.int64]:
        counts = np.array([len(one.starts) for one in self._records], np.int64)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def __len__(self) -> int:
        return sum(len(one.starts) for one in self._records)

    def _read(self, indices: Indices) -> list[object]:
        firsts, sum_of = self._starts(), self._sum()
        numbers = np.searchsorted(firsts, indices, side="right") - 1
        places = (indices - firsts[numbers]).tolist()
        blobs = {number: self._blob(number) for number in dict.fromkeys(numbers.tolist())}
        samples = []
        for index, number, place in zip(indices.tolist(), numbers.tolist(), places, strict=True):
            records = self._records[number]
            start, size = int(records.starts[place]), int(records.sizes[place])
            data = blobs[number].read(start, start + size + TRAILER.size)
            if sum_of is not None and sum_of(data[:size]) != TRAILER.unpack(data[size:])[0]:
                raise damaged_record(records.file.path, start, "its data")
            samples.append(self.form.build(data[:size], f"Record {index}, at byte {start} of {records.file.path},"))
        return samples

    def _blob(self, number: int) -> LocalBlob:
        """Return an open file, after checking that it is unchanged."""
        file = self._records[number].file
        blob = self._open.get().load(number, lambda: (LocalBlob(file.path), 1))
        blob.check()
        if (blob.size, blob.tag) != (file.size, str(file.tag)):
            self._open.get().clear()
            raise SourceChanged(
                f"{file.path} has changed since its records were found: it had {file.size} bytes and now has "
                f"{blob.size}, or was written again. Create the dataset again."
            )
        return blob

    def close(self) -> None:
        """Close all files in this process. The next read opens them again."""
        self._open.close()

    def _stored_in(self) -> tuple[str, ...]:
        return self.files

    def _form(self) -> str:
        return repr(self.form)
