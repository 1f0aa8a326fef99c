"""Tar shards, read from beginning to end."""

from __future__ import annotations

from collections.abc import Iterator

from feedline.datasets.formats.tar.form import TarForm
from feedline.datasets.formats.tar.grouping import Grouping, RawSample
from feedline.datasets.formats.tar.members import Members
from feedline.datasets.framework.shard_format import Run, ShardFormat
from feedline.datasets.framework.shares import ShardShare
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.content import Content


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

    def runs(self, content: Content, blob: Blob, share: ShardShare) -> Iterator[RawSample]:
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
            raw.begin = begin
            if members.can_be_entered:
                raw.place = content.place(raw.start)
            yield raw

    def build(self, run: Run[RawSample], place: int) -> object:
        (raw,) = run.records
        return self.form.build(raw.data, raw.names)

    def name_of(self, run: Run[RawSample], place: int) -> str:
        data = run.records[place].data
        return f"sample {data['__key__']!r} in {data['__url__']}"

    def __repr__(self) -> str:
        return repr(self.form)
