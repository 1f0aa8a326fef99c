"""Shards read from beginning to end."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from feedline.abc.source import EpochAware, Repeatable
from feedline.datasets.handle import Handle
from feedline.datasets.parted import PartedSource
from feedline.datasets.remote.ahead import Ahead
from feedline.datasets.remote.blob import Blob
from feedline.datasets.remote.storage import Storage, protocol_of
from feedline.datasets.source import Transform, checked_transform
from feedline.datasets.tar.form import TarForm
from feedline.datasets.tar.grouping import Grouping, RawSample, Selection
from feedline.datasets.tar.holding import Holding
from feedline.datasets.tar.members import Bytes, Members
from feedline.datasets.tar.options import Reading
from feedline.datasets.tar.packed import Unpacking, packing_of
from feedline.datasets.tar.parts import Part, Stint, stints
from feedline.errors import BadOption, BadState
from feedline.randomness.keys import epoch_key, mix
from feedline.values.shown import identity_of

_FORMAT = 1


class TarStream(PartedSource, EpochAware):
    """An iterable dataset of the samples in shards; `TarDataset(..., mode="stream")` makes it."""

    def __init__(
        self,
        shards: list[str],
        form: TarForm,
        reading: Reading,
        *,
        transform: Transform | None,
        shuffle: bool,
        buffer: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.shards = shards
        self.form = form
        self.reading = reading
        self.transform = checked_transform(transform)
        if not isinstance(shuffle, bool):
            raise BadOption(f"shuffle={shuffle!r} is not True or False.")
        if type(buffer) is not int or buffer < 0:
            raise BadOption(f"buffer={buffer!r} is not a whole number from 0 up.")
        self.shuffle = shuffle
        self.buffer = buffer if shuffle else 0
        self.seed = operator.index(seed)
        self.epoch = 0
        self._storage: Handle[Storage] = Handle(reading.open_storage, Storage.close)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next: each has its own order. Loaders of feedline do so by themselves."""
        self.epoch = operator.index(epoch)

    def __iter__(self) -> TarIterator:
        return TarIterator(self, self._part())

    def _part(self) -> Part:
        """Return which part of all shards is read here."""
        (worker, workers), (rank, ranks) = self._place()
        return Part(worker * ranks + rank, workers * ranks)

    def key(self, epoch: int) -> int:
        """Return what the order of an epoch follows from."""
        return epoch_key(self.seed, epoch)

    def open(self, address: str) -> Blob:
        """Open a shard; called by threads."""
        return self._storage.get().open(address)

    def close(self) -> None:
        """Close the connections of this process. They are opened again when they are needed."""
        self._storage.close()

    def __repr__(self) -> str:
        shuffle = f", shuffle=True, buffer={self.buffer}, seed={self.seed}" if self.shuffle else ""
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        return f"TarStream({len(self.shards)} shards, each sample {self.form!r}{shuffle}{transform})"


class TarIterator(Repeatable, Iterator[Any]):
    """One pass over the shards of a part.

    A class, not a generator: after an exception it goes on, with the next sample if one could not be decoded, with the
    next shard if one could not be read.

    Args:
        dataset: whose samples.
        part: which shards.
    """

    def __init__(self, dataset: TarStream, part: Part) -> None:
        self._dataset = dataset
        self._part = part
        self._epoch = dataset.epoch
        self._start: dict[str, Any] | None = None
        self._pass: _Pass | None = None
        self._failed: RawSample | None = None
        """The sample that raised the last exception."""
        self._again: RawSample | None = None
        """The one that is asked for once more."""

    def __iter__(self) -> TarIterator:
        return self

    def __next__(self) -> Any:
        if self._pass is None:
            self._pass = _Pass(self._dataset, self._part, self._epoch, self._start)
        raw, self._again, self._failed = self._again, None, None
        raw = raw or self._pass.next()
        if raw is None:
            raise StopIteration
        dataset = self._dataset
        try:
            sample = dataset.form.build(raw.data, raw.names)
            return sample if dataset.transform is None else dataset.transform(sample)
        except Exception:
            self._failed = raw
            raise

    def try_again(self) -> bool:
        """Make the sample that raised the last exception once more; False if it was about a shard."""
        self._again, self._failed = self._failed, None
        return self._again is not None

    def state_dict(self) -> dict[str, Any]:
        """Return where the pass is: a few numbers, whatever is held for shuffling."""
        dataset = self._dataset
        place = self._start or _BEGINNING if self._pass is None else self._pass.state()
        # With another signature they are the same shards.
        names = "\n".join(identity_of(shard) if protocol_of(shard) else shard for shard in dataset.shards)
        return {
            **place,
            "format": _FORMAT,
            "epoch": self._epoch,
            "seed": dataset.seed,
            "shuffle": dataset.shuffle,
            "buffer": dataset.buffer,
            "part": [self._part.number, self._part.count],
            "shards": [len(dataset.shards), zlib.crc32(names.encode("utf-8", "surrogateescape"))],
        }

    # Any: a state may come from anywhere.
    def load_state_dict(self, state: Any) -> None:
        """Go on where `state` was taken, with the next sample that would have come.

        Raises:
            BadState: it is none of these shards, this part or this order.
        """
        own = self.state_dict()
        if not isinstance(state, dict) or state.keys() != own.keys() or state["format"] != _FORMAT:
            raise BadState(f"This is not the state of a pass over tar shards: {state!r:.200}")
        for name in ("shards", "part", "seed", "shuffle", "buffer"):
            if list(state[name]) != own[name] if isinstance(own[name], list) else state[name] != own[name]:
                raise BadState(
                    f"The state was saved with {_WORDS.get(name, name)} {state[name]}, and now it is {own[name]}: the "
                    "samples that are left cannot be told. Use the same shards and options, and as many workers and "
                    "ranks as then."
                )
        self._epoch = state["epoch"]
        self._start = {name: state[name] for name in _BEGINNING}
        self._pass = None


_WORDS = {"shards": "shards (number and checksum of names)", "part": "part (worker of a rank, number of them)"}
_BEGINNING: dict[str, Any] = {"stint": 0, "offset": 0, "ordinal": 0, "number": 0, "last": [-1, -1]}
"""Where to read on: the shard, by its place in this part's order; where in it, and which sample that is; the number of
that sample in the pass; and what was given out last."""


class _Pass:
    """Reads, holds back, gives out."""

    def __init__(self, dataset: TarStream, part: Part, epoch: int, start: dict[str, Any] | None) -> None:
        begin = start or _BEGINNING
        key = dataset.key(epoch)
        self._dataset = dataset
        self._stints = stints(len(dataset.shards), part, mix(key, 0) if dataset.shuffle else None)
        self._holding: Holding[tuple[int, int, RawSample]] = Holding(
            mix(mix(key, 1), part.number), max(1, dataset.buffer), begin["number"], tuple(begin["last"])
        )
        self._stint = begin["stint"]
        """The place of the shard that is being read, or is next."""
        self._skip_to = (begin["offset"], begin["ordinal"])
        shards = [dataset.shards[stint.shard] for stint in self._stints[self._stint :]]
        starts = [begin["offset"], *[0] * len(shards)]
        reading = dataset.reading
        self._ahead = Ahead(
            dataset.open,
            zip(shards, starts, strict=False),
            depth=reading.depth(shards),
            chunk_bytes=reading.chunk_bytes(shards),
        )
        self._grouping: Grouping | None = None
        self._enters: Callable[[], bool] = bool
        self._blob: Blob | None = None
        self._ended = self._stint >= len(self._stints)

    def next(self) -> RawSample | None:
        holding = self._holding
        while not holding.is_ready(ended=self._ended):
            if self._ended:
                return None
            raw = self._read()
            if raw is not None:
                holding.add((self._stint, raw.start if self._enters() else 0, raw))
        return holding.take(ended=self._ended)[2]

    def _read(self) -> RawSample | None:
        """Read a sample; None if a shard has ended."""
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
        self._stint += 1
        self._skip_to = (0, 0)
        if self._stint >= len(self._stints):
            self._ended = True
            self._ahead.close()

    def _open(self) -> Grouping:
        blob = self._blob = self._ahead.next_blob()
        assert blob is not None
        stint, (offset, ordinal) = self._stints[self._stint], self._skip_to
        members = self._members(blob, offset)
        grouping = self._group(members, blob, stint, ordinal if offset else 0)
        grouping.skip_to(ordinal)  # if it could not be entered where it was left
        return grouping

    def _members(self, blob: Blob, offset: int) -> Members:
        reading, ahead = self._dataset.reading, self._ahead
        head = ahead.next_chunk()
        packing = None if offset else packing_of(head)
        chunks = _Chunks(head, ahead.next_chunk)
        self._enters = bool
        if packing is not None:
            unpacking = Unpacking(packing, chunks.next, blob.name)
            return Members(Bytes(unpacking.next_chunk), blob.name, size=None, limit=reading.max_field_bytes)
        limit = None if blob.is_local else reading.max_field_bytes  # a server may claim any size
        members = Members(Bytes(chunks.next, offset), blob.name, size=blob.size, limit=limit)
        self._enters = lambda: members.can_be_entered
        return members

    def _group(self, members: Members, blob: Blob, stint: Stint, ordinal: int) -> Grouping:
        dataset = self._dataset
        selection = Selection(dataset.form.wanted, stint.place, stint.every)
        return Grouping(members, blob.name, selection, ordinal=ordinal, unique=dataset.reading.unique_keys)

    def state(self) -> dict[str, Any]:
        holding = self._holding
        oldest = holding.oldest()
        if oldest is not None:
            number, (stint, offset, raw) = oldest
            ordinal = raw.ordinal
        else:
            number, stint = holding.number, self._stint
            offset, ordinal = self._skip_to
            if self._grouping is not None:
                offset, ordinal = (self._grouping.start if self._enters() else 0), self._grouping.ordinal
        return {"stint": stint, "offset": offset, "ordinal": ordinal, "number": number, "last": list(holding.last)}


class _Chunks:
    """Chunks, the first of which was taken already."""

    def __init__(self, head: bytes, following: Callable[[], bytes]) -> None:
        self._head = head
        self._following = following

    def next(self) -> bytes:
        head, self._head = self._head, b""
        return head or self._following()
