"""TFRecord files, read from beginning to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from feedline.datasets.formats.tfrecord.form import RecordForm
from feedline.datasets.formats.tfrecord.framing import HEADER, TRAILER, damaged_record, data_sum, is_record, sum_of
from feedline.datasets.framework.shard_format import Run, ShardFormat
from feedline.datasets.framework.shares import Entry, ShardShare
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.content import Content
from feedline.errors import CorruptSource
from feedline.system.sizes import check_size, most_bytes

Record = tuple[str, int, bytes]
"""The name of the file, where the data of the record begin in its content, and the data."""
_RUN_BYTES = 1 << 16


class TFRecordFormat(ShardFormat[Record]):
    """Finds the records of a file, and compares their checksums."""

    kind = "TFRecord files"

    def __init__(self, form: RecordForm, *, checksums: bool | None) -> None:
        self.form = form
        self.checksums = checksums

    def packing(self, head: bytes) -> str | None:
        return None if is_record(head) else super().packing(head)

    def runs(self, content: Content, blob: Blob, share: ShardShare) -> Iterator[Run[Record]]:
        begin, ordinal = share.entry, share.entry.ordinal
        sum_of_data = None if self.checksums is False else data_sum(needed=self.checksums is True)
        has_ended, damage = False, None
        while not has_ended:
            entry = Entry(*content.place(content.offset), ordinal, size=begin.size, packing=begin.packing)
            records, size = list[Record](), 0
            while size < _RUN_BYTES and not has_ended:
                try:
                    record = _next_record(content, blob.name, sum_of_data)
                except CorruptSource as exc:
                    record, damage = None, exc
                has_ended = record is None
                if record is not None:
                    records.append(record)
                    size += HEADER.size + len(record[2])
            if records:
                yield Run(entry, ordinal, records)
                ordinal += len(records)
        if damage is not None:
            raise damage

    def build(self, run: Run[Record], place: int) -> object:
        name, start, data = run.records[place]
        return self.form.build(data, f"The record at byte {start} of {name}")

    def __repr__(self) -> str:
        return repr(self.form)


def _next_record(content: Content, name: str, sum_of_data: Callable[[bytes], int] | None) -> Record | None:
    """Return the next record; None at the end. Raises CorruptSource: it is damaged or cut off."""
    head = content.take(HEADER.size)
    if not head:
        return None
    start = content.offset
    check_size(f"{name}, at byte {start},", HEADER.size, held=len(head))
    length, checksum = HEADER.unpack(head)
    if sum_of(head[:8]) != checksum:
        raise damaged_record(name, start, "its length")
    check_size(f"{name}, at byte {start},", length, limit=most_bytes())
    data, trailer = content.take(length), content.take(TRAILER.size)
    check_size(f"{name}, at byte {start},", length + TRAILER.size, held=len(data) + len(trailer))
    if sum_of_data is not None and sum_of_data(data) != TRAILER.unpack(trailer)[0]:
        raise damaged_record(name, start, "its data")
    return name, start, data
