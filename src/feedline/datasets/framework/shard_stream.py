"""Shards that are read from beginning to end: what streams of every format share.

A format says how the samples of one shard are found in its content (`shard_format.py`). Everything else stands here
and in `shard_pass.py`: which shards a part reads and in which order, reading ahead, decompressing, the shuffle buffer,
where a pass is, and how the rest of an epoch is divided among other workers and ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.abc.source import Reshardable, StreamSource
from feedline.datasets.framework.passes import (
    Epochs,
    Part,
    PartedStream,
    Stream,
    torch_worker,
)
from feedline.datasets.framework.shard_format import Shards
from feedline.datasets.framework.shard_order import order_of
from feedline.datasets.framework.shard_pass import ShardPass
from feedline.datasets.framework.shares import ShardShare, resharded
from feedline.datasets.framework.source import Transform, checked_transform
from feedline.randomness.keys import checked_seed
from feedline.randomness.scope import is_in_loader
from feedline.system.options import checked_count, checked_flag
from feedline.system.ranks import local_rank_count


class ShardStreamBase(Stream):
    """What both kinds of streams share."""

    is_common = False
    """True if every worker reads all shards, and the loader says which samples are its own."""
    shuffle = False
    buffer = seed = epoch = 0
    homes = 1
    """Groups of shards that stay apart."""

    # Any: a format's records.
    def __init__(self, shards: Shards[Any], transform: Transform | None) -> None:
        super().__init__()
        self.shards = shards
        self.transform = checked_transform(transform)

    def order(self, epoch: int, homes: int = 1) -> list[int]:
        """Return the shards in the order of an epoch, which all parts share."""
        return order_of(len(self.shards.addresses), self.seed if self.shuffle else None, homes, epoch)

    def __iter__(self) -> ShardPass:
        return ShardPass(self, self._part())

    @property
    def hands_on_images(self) -> bool:
        """As `Source.hands_on_images`."""
        return getattr(self.transform, "defers", False)

    def close(self) -> None:
        """Close the connections of this process. They are opened again when they are needed."""
        self.shards.close()

    def _order_shown(self) -> str:
        return ""

    def __repr__(self) -> str:
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        shards, own = self.shards, f"{len(self.shards.addresses)} {self.shards.format.kind}"
        return f"{type(self).__name__}({own}, each sample {shards.format!r}{self._order_shown()}{transform})"


class ShardStream(ShardStreamBase, PartedStream, Epochs, Reshardable):
    """An iterable dataset of the samples in shards; the method `stream` of a dataset makes it.

    Every worker of every rank reads its own shards. If there are fewer shards than workers, several read the same shard
    and divide its samples.
    """

    _here: int | None = None
    """Ranks on the machine of the process that pickled this: a worker elsewhere may not know."""

    def __init__(
        self,
        shards: Shards[Any],
        transform: Transform | None,
        *,
        shuffle: bool = False,
        buffer: int = 0,
        seed: int = 0,
        sticky: bool | None = None,
    ) -> None:
        super().__init__(shards, transform)
        self.shuffle = checked_flag("shuffle", shuffle)
        self.buffer = checked_count("buffer", buffer, 0) * shuffle
        self.seed = checked_seed(seed)
        self.sticky = None if sticky is None else checked_flag("sticky", sticky)

    # Any: states may come from anywhere.
    def reshard(self, left: Mapping[int, Any], count: int, into: int, epoch: int) -> list[object]:
        rest: list[ShardShare] = []
        for number, state in left.items():
            part = ShardPass(self, (number, count))
            part.load_state_dict(part.state_dict() | {"epoch": epoch} if state is None else state)
            rest += part.left()
        homes = max((state["homes"] for state in left.values() if state is not None), default=self.homes)
        state = {**ShardPass(self, (0, into)).state_dict(), "epoch": epoch, "homes": homes}
        return [
            {**state, **beginning, "part": [number, into]} for number, beginning in enumerate(resharded(rest, into))
        ]

    @property
    def homes(self) -> int:  # type: ignore[override]  # it depends on the ranks
        """Groups of shards that stay apart: one for each rank if the stream is sticky, otherwise one.

        All ranks must agree on it, so it follows from what all of them know: whether there are several machines.
        """
        ranks = self._place()[1][1]
        is_sticky = self.sticky
        if is_sticky is None:
            is_sticky = self.shards.remote.disk_cache is not None and ranks > self._ranks_here()
        return ranks if is_sticky and self.shuffle else 1

    def _ranks_here(self) -> int:
        return self._here or local_rank_count()

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_here": self._ranks_here()}

    def _order_shown(self) -> str:
        sticky = "" if self.sticky is None else f", sticky={self.sticky}"
        return f", shuffle=True, buffer={self.buffer}, seed={self.seed}{sticky}" if self.shuffle else ""


class CommonShardStream(ShardStreamBase, StreamSource):
    """The same in the order of the files, for samples that are cheap to pass over.

    Every worker reads all files and makes only its own samples, so that their order is the same with any number of
    workers and ranks. In torch's own loader, workers divide the files among them.
    """

    is_common = True

    @property
    def draws_nothing(self) -> bool:  # type: ignore[override]  # a transform can be anything
        return self.transform is None

    def _part(self) -> Part:
        return (0, 1) if is_in_loader() else torch_worker()
