"""`TarStream`: shards, read from beginning to end, and the state of a pass over them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from feedline.abc.source import Reshardable
from feedline.datasets.formats.tar.form import TarForm
from feedline.datasets.formats.tar.grouping import RawSample
from feedline.datasets.formats.tar.reader import BEGINNING, Held, ShardReader
from feedline.datasets.framework.passes import Epochs, Part, PartedStream, ResumablePass, names_sum
from feedline.datasets.framework.shard_order import order_of
from feedline.datasets.framework.shares import ShardShare, read, resharded, shares_of
from feedline.datasets.framework.shuffle_buffer import ShuffleBuffer
from feedline.datasets.framework.source import Transform, checked_count, checked_flag, checked_transform
from feedline.datasets.storage.blob import Blob, Version
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import Storage
from feedline.randomness.keys import checked_seed, epoch_key, mix
from feedline.system.handle import Handle
from feedline.system.ranks import local_rank_count
from feedline.types import State


class TarStream(PartedStream, Epochs, Reshardable):
    """An iterable dataset of the samples in shards; `TarDataset.stream` makes it."""

    _here: int | None = None
    """Ranks on the machine of the process that pickled this: a worker elsewhere may not know."""

    def __init__(
        self,
        shards: list[str],
        form: TarForm,
        remote: Remote,
        *,
        max_field_bytes: int,
        unique_keys: bool,
        transform: Transform | None,
        shuffle: bool,
        buffer: int,
        seed: int,
        sticky: bool | None = None,
        versions: Mapping[str, Version],
    ) -> None:
        super().__init__()
        self.shards = shards
        self.form = form
        self.remote = remote
        self.max_field_bytes = max_field_bytes
        self.unique_keys = unique_keys
        self.transform = checked_transform(transform)
        self.shuffle = checked_flag("shuffle", shuffle)
        self.buffer = checked_count("buffer", buffer, 0) * shuffle
        self.seed = checked_seed(seed)
        self.sticky = None if sticky is None else checked_flag("sticky", sticky)
        self._versions = versions
        """The versions that shards must have; of those that are missing, any will do."""
        self._storage: Handle[Storage] = Handle(functools.partial(Storage, remote, shards), Storage.close)

    def __iter__(self) -> TarPass:
        return TarPass(self, self._part())

    # Any: states may come from anywhere.
    def reshard(self, left: Mapping[int, Any], count: int, into: int, epoch: int) -> list[object]:
        rest: list[ShardShare] = []
        for number, state in left.items():
            part = TarPass(self, (number, count))
            part.load_state_dict(part.state_dict() | {"epoch": epoch} if state is None else state)
            rest += part.left()
        homes = max((state["homes"] for state in left.values() if state is not None), default=self.homes)
        state = {**TarPass(self, (0, into)).state_dict(), "epoch": epoch, "homes": homes}
        return [
            {**state, **beginning, "part": [number, into]} for number, beginning in enumerate(resharded(rest, into))
        ]

    @property
    def homes(self) -> int:
        """Groups of shards that stay apart: one for each rank if the stream is sticky, otherwise one.

        All ranks must agree on it, so it follows from what all of them know: whether there are several machines.
        """
        ranks = self._place()[1][1]
        is_sticky = self.sticky
        if is_sticky is None:
            is_sticky = self.remote.disk_cache is not None and ranks > self._ranks_here()
        return ranks if is_sticky and self.shuffle else 1

    def _ranks_here(self) -> int:
        return self._here or local_rank_count()

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_here": self._ranks_here()}

    def order(self, epoch: int, homes: int = 1) -> list[int]:
        """Return the shards in the order of an epoch, which all parts share."""
        return self._orders(homes)(epoch)

    def _orders(self, homes: int) -> Callable[[int], list[int]]:
        """Return what gives the order of an epoch, without a reference to this stream: a cache keeps it."""
        return functools.partial(order_of, len(self.shards), self.seed if self.shuffle else None, homes)

    @functools.cached_property
    def names_sum(self) -> list[int]:
        """Number of the shards, and a checksum of their names."""
        return names_sum(self.shards)

    @property
    def hands_on_images(self) -> bool:
        """As `Source.hands_on_images`."""
        return getattr(self.transform, "defers", False)

    def open(self, address: str) -> Blob:
        """Open a shard; called by threads."""
        return self._storage.get().open(address, self._versions.get(address))

    def close(self) -> None:
        """Close the connections of this process. They are reopened when needed."""
        self._storage.close()

    def __repr__(self) -> str:
        sticky = "" if self.sticky is None else f", sticky={self.sticky}"
        shuffle = f", shuffle=True, buffer={self.buffer}, seed={self.seed}{sticky}" if self.shuffle else ""
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        return f"TarStream({len(self.shards)} shards, each sample {self.form!r}{shuffle}{transform})"


class TarPass(ResumablePass[RawSample]):
    """One pass over the shards of a part.

    After an exception it continues with the next sample if one could not be decoded, or with the next shard if one
    could not be read.
    """

    _name = "tar shards"

    def __init__(self, stream: TarStream, part: Part) -> None:
        super().__init__(part, stream.transform)
        self._stream = stream
        self._epoch = stream.epoch
        self._start = BEGINNING
        self._homes = stream.homes
        self._units: list[list[object]] | None = None
        """The shares of this part, in the form of a state, if it continues an epoch that other parts started."""
        self._reader: ShardReader | None = None

    def _take(self) -> RawSample:
        if self._reader is None:
            order, shares = self._stream.order(self._epoch, self._homes), self._shares()
            self._reader = ShardReader(self._stream, order, shares, self._buffer(), self._start)
        raw = self._reader.next()
        if raw is None:
            raise StopIteration
        return raw

    def _shares(self) -> list[ShardShare]:
        count = len(self._stream.shards)
        return shares_of(count, self._part) if self._units is None else read(self._units, count)

    def _buffer(self) -> ShuffleBuffer[Held]:
        key = mix(mix(epoch_key(self._stream.seed, self._epoch), 1), self._part[0])
        start = self._start
        return ShuffleBuffer(key, max(1, self._stream.buffer), start["number"], tuple(start["last"]))

    def left(self) -> list[ShardShare]:
        """Return what remains to be read after the loaded state, by any part."""
        start, shares, buffer = self._start, self._shares(), self._buffer()
        first = start["share"]
        firsts = [start["number"], *start["begun"]][: len(shares) - first]
        shares[first : first + 1] = [
            replace(share, offset=start["offset"], ordinal=start["ordinal"]) for share in shares[first : first + 1]
        ]
        begun = []
        for share, number, end in zip(shares[first:], firsts, [*firsts[1:], None], strict=False):
            came = buffer.came(number, end)
            if end is None or not came.all():
                begun.append(share.without(came))
        return begun + shares[first + len(firsts) :]

    def _name_of(self, item: RawSample) -> str:
        return f"sample {item.data['__key__']!r} in {item.data['__url__']}"

    def _make(self, item: RawSample) -> object:
        return self._stream.form.build(item.data, item.names)

    def _position(self) -> dict[str, object]:
        position = self._start if self._reader is None else self._reader.state()
        units, share = self._units, position["share"]
        while units and share and len(units[0]) > 3:  # shards that others had started are the largest part of a state
            units, share = units[1:], share - 1
        return {**position, "share": share, "epoch": self._epoch, "homes": self._homes, "units": units}

    def _options(self) -> dict[str, object]:
        stream = self._stream
        return {
            "seed": stream.seed,
            "shuffle": stream.shuffle,
            "buffer": stream.buffer,
            "files": stream.names_sum,
        }

    def _enter(self, state: State) -> None:
        self._epoch = state["epoch"]
        self._start = {name: state[name] for name in BEGINNING}
        self._homes = state["homes"]
        self._units = state["units"]
        self._reader = None
