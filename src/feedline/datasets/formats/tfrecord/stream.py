"""Reads TFRecord files from beginning to end, compressed ones too."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from feedline.datasets.formats.tfrecord.form import RecordForm
from feedline.datasets.formats.tfrecord.framing import HEADER, TRAILER, damaged_record, data_sum, is_record, sum_of
from feedline.datasets.framework.passes import Epochs, Part, PartedStream, ResumablePass, names_sum
from feedline.datasets.framework.paths import File
from feedline.datasets.framework.shuffle_buffer import ShuffleBuffer
from feedline.datasets.framework.source import Transform, checked_count, checked_flag
from feedline.datasets.storage.unpacking import Bytes, packing_of, unpacked_file
from feedline.errors import SourceError
from feedline.randomness.bijection import Bijection
from feedline.randomness.keys import checked_seed, epoch_key, mix
from feedline.system.failures import words
from feedline.system.sizes import check_size, most_bytes
from feedline.types import State

_PIECE = 1 << 18
Record = tuple[str, bytes]
"""What a record is called in errors, and its data."""


class TFRecordStream(PartedStream, Epochs):
    """An iterable dataset of the records in TFRecord files; `TFRecordDataset.stream` makes it."""

    def __init__(
        self,
        files: Sequence[str],
        form: RecordForm,
        transform: Transform | None,
        checksums: bool | None,
        *,
        shuffle: bool,
        buffer: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.files = files
        self.form = form
        self.transform = transform
        self.checksums = checksums
        self.shuffle = checked_flag("shuffle", shuffle)
        self.buffer = checked_count("buffer", buffer, 0) if shuffle else 0
        self.seed = checked_seed(seed)

    def __iter__(self) -> TFRecordPass:
        return TFRecordPass(self, self._part())

    @functools.cached_property
    def names_sum(self) -> list[int]:
        """Number of the files, and a checksum of their names."""
        return names_sum(self.files)

    def __repr__(self) -> str:
        shuffle = f", shuffle=True, buffer={self.buffer}, seed={self.seed}" if self.shuffle else ""
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        return f"TFRecordStream({len(self.files)} files, each sample {self.form!r}{shuffle}{transform})"


class TFRecordPass(ResumablePass[Record]):
    """One pass over the files of a part. After a file that cannot be read, it continues with the next one."""

    _name = "TFRecord files"

    def __init__(self, stream: TFRecordStream, part: Part) -> None:
        super().__init__(part, stream.transform)
        self._stream = stream
        self._begin(stream.epoch)

    def _begin(self, epoch: int) -> None:
        stream, key = self._stream, epoch_key(self._stream.seed, epoch)
        numbers = np.arange(len(stream.files))
        order = Bijection(len(numbers), mix(key, 0))(numbers) if stream.shuffle else numbers
        self._epoch = epoch
        self._files = iter([stream.files[number] for number in order[self._part[0] :: self._part[1]].tolist()])
        self._buffer = ShuffleBuffer[Record](mix(mix(key, 1), self._part[0]), max(1, stream.buffer))
        self._records: Iterator[Record] = iter(())
        self._has_ended = self._was_interrupted = False
        self._place = 0
        """How many records were taken, and how many files could not be read to their end."""

    def _take(self) -> Record:
        if self._was_interrupted:
            self._enter({"epoch": self._epoch, "place": self._place})
        try:
            record = self._next()
        except (SourceError, StopIteration):
            self._place += 1
            raise
        except BaseException:  # an interrupt has ended the generator in the middle of a file
            self._was_interrupted = True
            raise
        self._place += 1
        return record

    def _next(self) -> Record:
        while not self._buffer.is_ready(ended=self._has_ended):
            if self._has_ended:
                raise StopIteration
            record = next(self._records, None)  # a generator ends when it raises
            if record is not None:
                self._buffer.add(record)
            elif (path := next(self._files, None)) is not None:
                self._records = read_records(path, checksums=self._stream.checksums)
            else:
                self._has_ended = True
        return self._buffer.take(ended=self._has_ended)

    def _make(self, item: Record) -> object:
        return self._stream.form.build(item[1], item[0])

    def _position(self) -> dict[str, object]:
        return {"epoch": self._epoch, "place": self._place - (self._again is not None)}

    def _options(self) -> dict[str, object]:
        stream = self._stream
        return {
            "shuffle": stream.shuffle,
            "seed": stream.seed,
            "buffer": stream.buffer,
            "files": stream.names_sum,
        }

    def _enter(self, state: State) -> None:
        self._begin(state["epoch"])
        with contextlib.suppress(StopIteration):
            while self._place < state["place"]:
                with contextlib.suppress(SourceError):  # it was raised before
                    self._take()


def read_records(path: str, *, checksums: bool | None) -> Iterator[Record]:
    """Yield the records of a file.

    Raises SourceError: it cannot be read; CorruptSource: it is cut off or damaged; SourceChanged: it was written to.
    """
    file, sum_of_data = File.at(path), None if checksums is False else data_sum(needed=checksums is True)
    data = _opened(path)
    while head := data.take(HEADER.size):
        check_size(f"{path}, at byte {data.offset},", HEADER.size, held=len(head))
        length, checksum = HEADER.unpack(head)
        start = data.offset
        if sum_of(head[:8]) != checksum:
            raise damaged_record(path, start, "its length")
        check_size(f"{path}, at byte {start},", length, limit=most_bytes())
        content, trailer = data.take(length), data.take(TRAILER.size)
        check_size(f"{path}, at byte {start},", length + TRAILER.size, held=len(content) + len(trailer))
        if sum_of_data is not None and sum_of_data(content) != TRAILER.unpack(trailer)[0]:
            raise damaged_record(path, start, "its data")
        yield f"The record at byte {start} of {path}", content
    file.check()


def _opened(path: str) -> Bytes:
    """Return the bytes of a file, decompressed if needed. The file is open only during reads."""
    places = itertools.count(0, _PIECE)

    def piece(start: int, size: int) -> bytes:
        try:
            with open(path, "rb") as file:
                file.seek(start)
                return file.read(size)
        except OSError as exc:
            raise SourceError(f"{path} cannot be read: {words(exc)}.") from exc

    def next_piece() -> bytes:
        return piece(next(places), _PIECE)

    head = piece(0, HEADER.size)
    packing = packing_of(head)
    return Bytes(next_piece) if packing is None or is_record(head) else unpacked_file(path, packing)
