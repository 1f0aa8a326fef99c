"""What reading shards from a store costs, before anything is fetched: bytes, requests and waiting, epoch by epoch.

One machine of several is simulated. It reads its shards in the order of the real stream, through a cache that decides
with the code of the real one (`ShardForesight`, `victims_of`), shard by shard instead of piece by piece. All machines
have equal shares, so the figures of one hold for each. The clock is virtual.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.shard_order import shuffled
from feedline.datasets.storage.cache_pieces import victims_of
from feedline.datasets.storage.disk_cache import PIECE_BYTES
from feedline.datasets.storage.foresight import Readers, ShardForesight


@dataclass(frozen=True)
class Reading:
    """What is read, by how many readers, and with which resources."""

    sizes: Sequence[int]
    """The size of each shard, in bytes."""
    cache_bytes: int = 0
    """The size of the cache of each machine."""
    machines: int = 1
    ranks: int = 1
    """Ranks of each machine."""
    workers: int = 2
    """Workers of each rank."""
    sticky: bool = False
    seed: int = 0
    bytes_per_s: float = math.inf
    """The bandwidth of a machine's connection to the store."""
    used_per_s: float = math.inf
    """How many bytes per second training consumes on a machine."""
    ahead_bytes: int = 64 << 20
    """How many bytes a worker fetches ahead."""


@dataclass(frozen=True)
class Traffic:
    """One epoch of one machine."""

    read_bytes: int
    fetched_bytes: int
    requests: int
    stalled_s: float
    """How long training waited for shards."""
    seconds: float


class Machine:
    """A machine that reads epoch after epoch.

    Example:
        >>> machine = Machine(Reading([100] * 50, cache_bytes=1500))
        >>> first, second = machine.epoch(), machine.epoch()
        >>> first.fetched_bytes, second.fetched_bytes
        (5000, 3500)
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._sizes = np.asarray(reading.sizes, np.int64)
        self._epoch = 0
        self._is_held = np.zeros(len(self._sizes), bool)
        self._held_bytes = 0

    def epoch(self) -> Traffic:
        """Read the next epoch; return what it cost."""
        reading, count = self._reading, len(self._sizes)
        ranks = reading.machines * reading.ranks
        parts = ranks * reading.workers
        homes = ranks if reading.sticky else 1
        order = functools.partial(shuffled, count, reading.seed, homes=homes)
        readers = Readers(0, parts, ranks, reading.ranks)
        names = list(map(str, range(count)))
        foresight = ShardForesight(names, order, self._epoch, readers)
        line = _Line(reading)
        shards = order(self._epoch)
        for turn in np.flatnonzero(readers.on_this_machine(count)).tolist():
            foresight.turn = turn
            line.read(int(self._sizes[shards[turn]]), is_held=bool(self._is_held[shards[turn]]))
            if not self._is_held[shards[turn]]:
                self._keep(shards[turn], foresight)
        self._epoch += 1
        return line.traffic()

    def _keep(self, shard: int, foresight: ShardForesight) -> None:
        """Cache a shard, unless all cached ones are needed sooner."""
        size = int(self._sizes[shard])
        held = np.flatnonzero(self._is_held)
        excess = self._held_bytes + size - self._reading.cache_bytes
        victims: NDArray[np.int64] = held[:0]
        fits = excess <= 0
        if not fits:
            chosen, fits = victims_of(foresight.times()[held], self._sizes[held], foresight.after(shard), excess)
            victims = held[chosen]
        if fits:
            self._is_held[victims] = False
            self._is_held[shard] = True
            self._held_bytes += size - int(self._sizes[victims].sum())


class _Line:
    """The connection to the store, and the training that it feeds, in virtual time."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._ahead = reading.ahead_bytes * reading.workers * reading.ranks
        self._read = self._fetched = self._requests = 0
        self._fetched_s = 0.0
        """When the last shard had arrived."""
        self._used: list[tuple[int, float]] = [(0, 0.0)]
        """How many bytes training had consumed, and when: interpolated between these points."""
        self._stalled_s = 0.0

    def read(self, size: int, *, is_held: bool) -> None:
        """Read the next shard."""
        reading = self._reading
        may_begin_s = self._time_of(self._read - self._ahead)
        if is_held:
            arrived_s = may_begin_s
        else:
            arrived_s = self._fetched_s = max(self._fetched_s, may_begin_s) + size / reading.bytes_per_s
            self._fetched += size
            self._requests += -(-size // PIECE_BYTES)
        _, used_s = self._used[-1]
        ends_s = max(used_s + size / reading.used_per_s, arrived_s)
        self._stalled_s += ends_s - used_s - size / reading.used_per_s
        self._read += size
        self._used.append((self._read, ends_s))

    def _time_of(self, used: int) -> float:
        """Return when training had consumed this many bytes."""
        sizes, times = zip(*self._used[-64:], strict=True)
        return float(np.interp(used, sizes, times))

    def traffic(self) -> Traffic:
        return Traffic(self._read, self._fetched, self._requests, self._stalled_s, self._used[-1][1])
