"""`ShardReader`: the samples of some shards, one shard after the other, as a shuffle buffer releases them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Protocol

from feedline.datasets.formats.tar.form import TarForm
from feedline.datasets.formats.tar.grouping import Grouping, RawSample, Selection
from feedline.datasets.formats.tar.members import Members
from feedline.datasets.framework.shares import ShardShare
from feedline.datasets.framework.shuffle_buffer import ShuffleBuffer
from feedline.datasets.storage.ahead import read_ahead
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.unpacking import Bytes, Unpacking, packing_of
from feedline.types import State

Held = tuple[int, int, RawSample]
"""What the buffer holds: the place of a sample's shard, the offset at which to begin again, and the sample."""
BEGINNING: State = {"share": 0, "offset": 0, "ordinal": 0, "number": 0, "last": [-1, -1], "begun": []}
"""Where to resume: the shard, by its place in this part's order; the offset in it, and the ordinal of the sample there;
the number of that sample in the pass; the last release; and the first sample numbers of the later shards already
started."""


class ShardSource(Protocol):
    """What a reader needs of its stream."""

    shards: list[str]
    form: TarForm
    remote: Remote
    max_field_bytes: int
    unique_keys: bool

    def open(self, address: str) -> Blob: ...


class ShardReader:
    """Reads samples, buffers them and releases them."""

    def __init__(
        self,
        stream: ShardSource,
        order: list[int],
        shares: list[ShardShare],
        buffer: ShuffleBuffer[Held],
        begin: State,
    ) -> None:
        self._stream = stream
        self._shares = shares
        self._buffer = buffer
        self._share = begin["share"]
        """Place of the shard being read, or of the next one."""
        self._begun: dict[int, int] = {}
        """First sample number of each started shard, by place, for shards with samples in the buffer."""
        self._skip_to = (begin["offset"], begin["ordinal"])
        shards = [stream.shards[order[share.turn]] for share in shares[self._share :]]
        starts = [begin["offset"], *(share.offset for share in shares[self._share + 1 :])]
        self._ahead = read_ahead(stream.open, list(zip(shards, starts, strict=False)), stream.remote)
        self._grouping: Grouping | None = None
        self._enters: Callable[[], bool] = bool
        self._blob: Blob | None = None
        self._ended = self._share >= len(self._shares)

    def next(self) -> RawSample | None:
        """Return the next sample; None after the last one."""
        buffer = self._buffer
        while not buffer.is_ready(ended=self._ended):
            if self._ended:
                return None
            raw = self._read()
            if raw is not None and raw.ordinal not in self._shares[self._share].came:
                buffer.add((self._share, raw.start if self._enters() else 0, raw))
        return buffer.take(ended=self._ended)[2]

    def _read(self) -> RawSample | None:
        """Read a sample; None at the end of a shard."""
        try:
            if self._grouping is None:
                self._grouping = self._open()
            raw = self._grouping.next()
            if raw is None and self._blob is not None:
                self._blob.check()
        except Exception:
            self._go_on()
            raise
        if raw is None:
            self._go_on()
        return raw

    def _go_on(self) -> None:
        self._grouping = self._blob = None
        self._share += 1
        if self._share >= len(self._shares):
            self._skip_to = (0, 0)
            self._ended = True
            self._ahead.close()
            return
        share = self._shares[self._share]
        self._skip_to = (share.offset, share.ordinal)
        self._begun[self._share] = self._buffer.number

    def _open(self) -> Grouping:
        blob = self._blob = self._ahead.next_blob()
        assert blob is not None
        share, (offset, ordinal) = self._shares[self._share], self._skip_to
        members = self._members(blob, offset)
        selection = Selection(self._stream.form.wanted, share.place, share.every)
        unique, begun = self._stream.unique_keys, ordinal if offset else 0
        grouping = Grouping(members, blob.name, selection, ordinal=begun, unique=unique)
        grouping.skip_to(ordinal)  # if reading could not start where it stopped
        return grouping

    def _members(self, blob: Blob, offset: int) -> Members:
        limit, ahead = self._stream.max_field_bytes, self._ahead
        head = ahead.next_chunk()
        packing = None if offset else packing_of(head)
        chunks = itertools.chain([head], iter(ahead.next_chunk, b""))
        next_chunk = functools.partial(next, chunks, b"")
        self._enters = bool
        if packing is not None:
            unpacking = Unpacking(packing, next_chunk, blob.name)
            return Members(Bytes(unpacking.next_chunk), blob.name, size=None, limit=limit)
        size_limit = None if blob.is_local else limit  # a server may claim any size
        members = Members(Bytes(next_chunk, offset), blob.name, size=blob.size, limit=size_limit)
        self._enters = lambda: members.can_be_entered
        return members

    def state(self) -> State:
        """Return where to continue, in the form of `BEGINNING`."""
        buffer = self._buffer
        oldest = buffer.oldest()
        if oldest is not None:
            number, (share, offset, raw) = oldest
            ordinal = raw.ordinal
        else:
            number, share = buffer.number, self._share
            offset, ordinal = self._skip_to
            if self._grouping is not None:
                offset, ordinal = (self._grouping.start if self._enters() else 0), self._grouping.ordinal
        self._begun = {place: first for place, first in self._begun.items() if place > share}
        return {
            "share": share,
            "offset": offset,
            "ordinal": ordinal,
            "number": number,
            "last": list(buffer.last),
            "begun": list(self._begun.values()),
        }
