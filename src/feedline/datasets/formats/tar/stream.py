"""Tar shards, read from beginning to end."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.datasets.formats.tar.form import TarForm
from feedline.datasets.formats.tar.grouping import Grouping, RawSample
from feedline.datasets.formats.tar.members import Members
from feedline.datasets.framework.shard_format import Run, ShardFormat
from feedline.datasets.framework.shares import Entry, ShardShare
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.content import Content, Place


class SampleRun(Run[RawSample]):
    """One sample. Its entry is made when it is asked for: hardly ever, and a sample is often small."""

    __slots__ = ("_begin", "_can_be_entered", "_place", "_raw", "ordinal")

    def __init__(self, raw: RawSample, begin: Entry, place: Place | None, can_be_entered: bool) -> None:
        self.ordinal = raw.ordinal
        self._raw = raw
        self._begin = begin
        self._place = place
        self._can_be_entered = can_be_entered

    @property
    def records(self) -> tuple[RawSample]:  # type: ignore[override]  # not stored
        return (self._raw,)

    @property
    def entry(self) -> Entry:  # type: ignore[override]  # not stored
        if not self._can_be_entered:
            return self._begin
        place = self._place or Place(self._raw.start, self._raw.start, self._raw.start)
        return Entry(*place, self.ordinal, size=self._begin.size, packing=self._begin.packing)


class TarFormat(ShardFormat[RawSample]):
    """Finds samples among the files of a shard.

    Args:
        form: makes samples of their bytes.
        max_field_bytes: the most bytes of a sample, where the size of the shard does not limit them.
        unique_keys: True to refuse a key that occurs again.
    """

    kind = "tar shards"

    def __init__(self, form: TarForm, *, max_field_bytes: int, unique_keys: bool) -> None:
        self.form = form
        self.max_field_bytes = max_field_bytes
        self.unique_keys = unique_keys

    def runs(self, content: Content, blob: Blob, share: ShardShare) -> Iterator[SampleRun]:
        begin, is_plain = share.entry, content.packing is None
        limit = None if blob.is_local and is_plain else self.max_field_bytes  # a server may claim any size
        members = Members(content, blob.name, size=blob.size if is_plain else None, limit=limit)
        grouping = Grouping(
            members,
            blob.name,
            fields=self.form.wanted,
            wants=share.wants if share.has_gaps or share.ordinal > begin.ordinal else None,
            ordinal=begin.ordinal,
            unique=self.unique_keys,
        )
        while (raw := grouping.next()) is not None:
            place = None
            if members.can_be_entered and not is_plain:
                place = content.place(raw.start)
            yield SampleRun(raw, begin, place, members.can_be_entered)

    def build(self, run: Run[RawSample], place: int) -> object:
        raw = run.records[place]
        return self.form.build(raw.data, raw.names)

    def name_of(self, run: Run[RawSample], place: int) -> str:
        data = run.records[place].data
        return f"sample {data['__key__']!r} in {data['__url__']}"

    def __repr__(self) -> str:
        return repr(self.form)
