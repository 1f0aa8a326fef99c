"""One pass over shards that are read from beginning to end.

Samples of a shard are numbered. A position is an `Entry`, from which reading can begin, and the number of the sample
that comes next: those before it are passed over. So resuming reads little again, whatever the format.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from feedline.datasets.framework.passes import Part, ResumablePass
from feedline.datasets.framework.shard_format import Damage, Run, ShardFormat, Shards, raise_damage
from feedline.datasets.framework.shares import Entry, ShardShare, read, shares_of
from feedline.datasets.framework.shuffle_buffer import ShuffleBuffer
from feedline.datasets.framework.source import Transform
from feedline.datasets.storage.ahead import Ahead, read_ahead
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.content import Content
from feedline.errors import CorruptSource, SourceChanged
from feedline.randomness.keys import epoch_key, mix
from feedline.types import State


class StreamToRead(Protocol):
    """What a pass needs to know of its stream."""

    # Any: a format's records.
    shards: Shards[Any]
    transform: Transform | None
    is_common: bool
    shuffle: bool
    buffer: int
    seed: int
    epoch: int

    @property
    def homes(self) -> int: ...

    def order(self, epoch: int, homes: int = 1) -> list[int]: ...


Held = tuple[int, Run[Any], int]
"""A sample: the place of its shard in the order of the part; its run, and its place there. Any: a format's records."""
_BEGINNING: State = {
    "share": 0, "entry": list(Entry()), "ordinal": 0, "number": 0, "last": [-1, -1], "begun": [], "units": None,
}  # fmt: skip
"""Where to resume: the shard, by its place in the order of this part; where to begin to read it, and the number of the
sample that comes next there; the number of that sample in the pass; the last release of the buffer; the first sample
numbers of the later shards already started; and the shares of this part, if it continues what other parts started."""
_MOST = 128
"""Samples made at a time, if many are asked for. A guess: more save nothing, and hold more memory."""


class ShardPass(ResumablePass[Held]):
    """One pass over the shards of a part.

    After an exception it continues with the next sample if one could not be made, or with the next shard if the rest
    of one cannot be read. A pass of which every worker reads all shards breaks off if one cannot be reached: workers
    have to agree on the numbers of samples.
    """

    _ahead: Ahead | None = None

    def __init__(self, stream: StreamToRead, part: Part = (0, 1)) -> None:
        super().__init__(part, stream.transform)
        self._stream = stream
        self._format: ShardFormat[Any] = stream.shards.format
        self._name = self._format.kind
        self._enter({**_BEGINNING, "epoch": stream.epoch, "homes": stream.homes})

    def _enter(self, state: State) -> None:
        self._let_go()
        self._epoch, self._homes = state["epoch"], state["homes"]
        self._start = {name: state[name] for name in _BEGINNING}
        self._shares: list[ShardShare] | None = None
        """What this part reads; None until it does."""
        self._share: int = state["share"]
        """The place of the shard that is read, or of the next one."""
        self._run: Run[Any] | None = None
        """What was read of it last."""
        self._index = 0
        """The place of the next sample there."""
        self._runs: Iterator[Run[Any]] | None = None
        self._blob: Blob | None = None
        self._begun: dict[int, int] = dict(enumerate(state["begun"], self._share + 1))
        """The first sample number of each later shard that was started, by its place."""
        self._buffer = self._new_buffer()
        self._has_gaps = False
        """True if other parts, or earlier ones, take samples of the shard in between."""
        self._made: tuple[Run[Any] | None, int, list[object]] = None, 0, []
        """Samples made ahead, before their transform: their run, the place of the first one there, and themselves."""

    def close(self) -> None:
        """Close the shards, and end the threads that read ahead. The next sample opens them again."""
        position = self._position()
        self._again = self._failed = None
        self._enter(position)

    def _let_go(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def _new_buffer(self) -> ShuffleBuffer[Held]:
        key = mix(mix(epoch_key(self._stream.seed, self._epoch), 1), self._part[0])
        start = self._start
        return ShuffleBuffer(key, max(1, self._stream.buffer), start["number"], tuple(start["last"]))

    def _own_shares(self) -> list[ShardShare]:
        """Return what this part reads. The shard that the state is in begins where the state is."""
        count, start = len(self._stream.shards.addresses), self._start
        shares = shares_of(count, self._part) if start["units"] is None else read(start["units"], count)
        first = start["share"]
        shares[first : first + 1] = [
            replace(share, entry=Entry(*start["entry"]), ordinal=start["ordinal"])
            for share in shares[first : first + 1]
        ]
        return shares

    # From run to run, and from shard to shard.

    def _next_run(self) -> bool:
        """Read on until there is another sample; False at the end."""
        self.has_broken_off = False
        if self._ahead is not None and not self._ahead.is_own:  # in a forked process, which has not its threads
            self.close()
        if self._shares is None:
            self._shares = self._own_shares()
        while self._share < len(self._shares):
            share = self._shares[self._share]
            try:
                run = self._read(share)
            except CorruptSource as exc:
                if self._stream.buffer > 1:  # not through the buffer: it has numbers for samples only
                    self._go_on()
                    raise
                self._runs, self._blob = iter(()), None
                run = Run(share.entry if self._run is None else self._run.entry, self._after(share), [Damage(exc)])
            except BaseException as exc:
                self._give_up(exc)
                raise
            if run is None:
                self._go_on()
                continue
            self._run, self._index = run, max(0, share.ordinal - run.ordinal)
            self._has_gaps = share.has_gaps
            if self._index < len(run.records):
                return True
        return False

    def _after(self, share: ShardShare) -> int:
        """Return the number of the sample of this share after the last one that was read or returned."""
        after = share.ordinal
        if self._run is not None:
            after = max(after, self._run.ordinal + len(self._run.records))
        return after + (share.place - after) % share.every

    def _read(self, share: ShardShare) -> Run[Any] | None:
        if self._runs is None:
            self._runs = self._opened(share)
        run = next(self._runs, None)
        if run is None and self._blob is not None:
            self._blob.check()
        return run

    def _opened(self, share: ShardShare) -> Iterator[Run[Any]]:
        ahead = self._ahead = self._ahead or self._read_ahead()
        blob = self._blob = ahead.next_blob()
        assert blob is not None
        entry = share.entry
        if entry.size not in (-1, blob.size):
            raise SourceChanged(
                f"{blob.name} has {blob.size} bytes, but had {entry.size} when the state was saved. Use the data that "
                "the state was saved with, or begin the epoch anew, without the state."
            )
        head = ahead.next_chunk()
        packing = (self._format.packing(head) or "") if entry.size == -1 else entry.packing
        entry = entry._replace(size=blob.size, packing=packing)
        chunks = itertools.chain([head], iter(ahead.next_chunk, b""))
        content = Content(functools.partial(next, chunks, b""), blob.name, packing or None, entry.place)
        return self._format.runs(content, blob, replace(share, entry=entry))

    def _read_ahead(self) -> Ahead:
        shards, shares = self._stream.shards, (self._shares or [])[self._share :]
        order = self._stream.order(self._epoch, self._homes)
        addresses = [shards.addresses[order[share.turn]] for share in shares]
        return read_ahead(
            shards.open, list(zip(addresses, (share.entry.at for share in shares), strict=True)), shards.remote
        )

    def _go_on(self) -> None:
        """Go on to the next shard."""
        self._runs = self._blob = self._run = None
        self._share += 1
        if self._share < len(self._shares or ()):
            # A shard before it may have fewer samples than when the state was saved, if it cannot be reached now.
            self._buffer.number = max(self._buffer.number, self._begun.get(self._share, 0))
            self._begun[self._share] = self._buffer.number
        else:
            self._let_go()

    def _give_up(self, exc: BaseException) -> None:
        """Go on after an exception with the next shard, or with the same place."""
        if isinstance(exc, Exception) and not self._stream.is_common:
            self._go_on()
            return
        # A generator has ended with the exception. What the buffer held is read again.
        self._enter(self._position())
        self.has_broken_off = isinstance(exc, Exception)

    # Samples, one by one through the buffer.

    def __next__(self) -> Any:
        run, first, samples = self._made
        place = self._index - first
        is_made = run is self._run is not None and 0 <= place < len(samples)
        if not is_made or self._has_gaps or self._again is not None or self._transform is not None:
            return super().__next__()
        self._failed = None  # the usual case of samples that are made several at a time
        self._pass(1)
        return samples[place]

    def _take(self) -> Held:
        if self._stream.buffer <= 1:
            held = self._next_held()
            if held is None:
                raise StopIteration
            self._buffer.pass_by(1)
            return held
        while not self._buffer.is_ready(ended=False):
            held = self._next_held()
            if held is None:
                if not self._buffer.is_ready(ended=True):
                    raise StopIteration
                return self._buffer.take(ended=True)
            self._buffer.add(held)
        return self._buffer.take(ended=False)

    def _next_held(self) -> Held | None:
        """Return the next sample of this part in the order of the shards; None at the end."""
        while True:
            run, index = self._run, self._index
            if run is None or index >= len(run.records):
                if not self._next_run():
                    return None
                continue
            if self._buffer.number >= self._begun.get(self._share + 1, sys.maxsize):
                self._go_on()  # the rest of this shard could not be read before the state was saved
                continue
            self._index = index + 1
            is_damage = self._has_gaps and isinstance(run.records[0], Damage)
            if not self._has_gaps or is_damage or self._share_now().wants(run.ordinal + index):
                return self._share, run, index

    def _share_now(self) -> ShardShare:
        assert self._shares is not None
        return self._shares[self._share]

    def _make(self, item: Held) -> object:
        _, run, place = item
        raise_damage(run)
        if self._format.made_ahead == 1 or self._stream.buffer > 1:
            return self._format.build(run, place)
        before, first, samples = self._made
        if before is not run or not first <= place < first + len(samples):
            places = range(place, min(place + self._format.made_ahead, len(run.records)))
            first, samples = place, self._format.build_several(run, places)
            self._made = run, first, samples
        return samples[place - first]

    def _forget_made(self) -> None:
        self._made = None, 0, []

    def _name_of(self, item: Held) -> str:
        return self._format.name_of(item[1], item[2])

    # Samples, several at a time.

    def _ready(self) -> int:
        """Return how many samples can be passed at once; zero at the end, or if they have to go through the buffer."""
        if self._again is not None or self._stream.buffer > 1:
            return 0
        if (self._run is None or self._index >= len(self._run.records)) and not self._next_run():
            return 0
        assert self._run is not None
        return 0 if self._has_gaps else len(self._run.records) - self._index

    def _pass(self, count: int) -> None:
        self._index += count
        self._buffer.pass_by(count)

    # Any: samples of any kind.
    def take(self, count: int) -> list[Any]:
        """Return some of the next `count` samples, at least one; none at the end.

        There are fewer before a sample that cannot be made. The next call then raises its exception.
        """
        ready = min(self._ready(), count, _MOST)
        run, index, made = self._run, self._index, list[object]()
        if not ready or run is None:
            return list(itertools.islice(self, min(count, 1)))
        self._failed = None
        try:
            raise_damage(run)
            samples = self._format.build_several(run, range(index, index + ready))
            if self._transform is None:
                made = samples
            else:
                for place, sample in enumerate(samples, index):
                    made.append(self._transformed(sample, (self._share, run, place)))
        except Exception:
            if not made:
                self._failed = self._share, run, index
                self._pass(1)
                raise
        self._pass(len(made))
        return made

    def skip(self, count: int) -> int:
        """Pass over up to `count` samples without making them; return how many there were."""
        skipped = 0
        if self._again is not None and count:
            self._again, skipped = None, 1
        while skipped < count:
            ready = min(self._ready(), count - skipped)
            if ready:
                self._pass(ready)
            else:
                try:
                    self._take()
                except StopIteration:
                    break
            skipped += ready or 1
        return skipped

    # Positions.

    def _position(self) -> State:
        number, share, entry, ordinal, last = self._oldest()
        units = self._start["units"]
        begun = [first for place, first in self._begun.items() if place > share]
        while units and share and len(units[0]) > 3:  # shards that others had started are the largest part of a state
            units, share = units[1:], share - 1
        return {
            "share": share,
            "entry": list(entry),
            "ordinal": ordinal,
            "number": number,
            "last": list(last),
            "begun": begun,
            "units": units,
            "epoch": self._epoch,
            "homes": self._homes,
        }

    def _oldest(self) -> tuple[int, int, Entry, int, tuple[int, int]]:
        """Return where to begin again: number, shard, entry and ordinal of a sample; and the last release."""
        buffer = self._buffer
        last, oldest = buffer.last, buffer.oldest()
        if self._again is not None:  # as if it had not been taken
            last, number = buffer.taken
            oldest = (
                (number, self._again)
                if oldest is None
                else min(oldest, (number, self._again), key=operator.itemgetter(0))
            )
        if oldest is not None:
            number, (share, held, index) = oldest
            return number, share, held.entry, held.ordinal + index, last
        here, run = self._share, self._run
        if run is not None and not (self._index and isinstance(run.records[0], Damage)):
            return buffer.number, here, run.entry, run.ordinal + self._index, last
        if run is None and here == self._start["share"]:
            return buffer.number, here, Entry(*self._start["entry"]), self._start["ordinal"], last
        here += run is not None  # after damage, nothing more is read of a shard
        following = (self._shares or [])[here : here + 1] or [ShardShare(0)]
        return buffer.number, here, following[0].entry, following[0].ordinal, last

    def _options(self) -> dict[str, object]:
        stream = self._stream
        return {
            "seed": stream.seed,
            "shuffle": stream.shuffle,
            "buffer": stream.buffer,
            "files": stream.shards.names_sum,
        }

    def left(self) -> list[ShardShare]:
        """Return what remains to be read after the loaded state, by any part."""
        start, shares, buffer = self._start, self._own_shares(), self._new_buffer()
        first = start["share"]
        firsts = [start["number"], *start["begun"]][: len(shares) - first]
        begun = []
        for share, number, end in zip(shares[first:], firsts, [*firsts[1:], None], strict=False):
            came = buffer.came(number, end)
            if end is None or not came.all():
                begun.append(share.without(came))
        return begun + shares[first + len(firsts) :]
