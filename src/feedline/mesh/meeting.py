"""Ranks that wait for each other, and the peers that compare what they got: with gloo, and with the default store.

A collective that a rank never joins tells nobody which one is missing. So every rank leaves its name in the store of
the process group before it waits: when the time is over, those that are missing are known.

Called from the training loop's thread only, in the same order on all ranks. Nothing here uses NCCL.
"""

from __future__ import annotations

import functools
import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store  # not public, and needed by every launcher

from feedline.errors import RankError
from feedline.mesh.data_rank import DataRank

_MOST_NAMED = 8
"""Missing ranks that a message names."""


_numbers = itertools.count()
"""Numbers the meetings: all ranks have the same ones, in the same order. They go on if the process group is made anew,
because the store may be the old one."""


# Any: torch's store.
def _store() -> Any:
    return dist.PrefixStore("feedline", _get_default_store())  # type: ignore[attr-defined]  # it is not in __all__


def agree(place: DataRank, about: Mapping[str, object], seed: int) -> int:
    """Return the seed of rank 0.

    Args:
        place: this process.
        about: what must be the same on all ranks, by names for an error.
        seed: the seed that this rank would use.

    Raises:
        RankError: a rank does not come, or differs.
    """
    rank, size, store = dist.get_rank(), dist.get_world_size(), _store()
    where, wait = f"loader-{next(_numbers)}", timedelta(seconds=place.timeout_s)
    if rank == 0:
        store.set(f"{where}/seed", json.dumps({"seed": seed, "about": dict(about)}))
    store.set(f"{where}/{rank}", "")
    if store.add(f"{where}/count", 1) == size:
        store.set(f"{where}/all", "")
    try:
        store.wait([f"{where}/all"], wait)
    except (RuntimeError, ValueError) as exc:  # the type depends on the store and on torch's version
        store.set(f"{where}/failed", "")  # for those that come late: from now on, numbers would not fit
        missing = [other for other in range(size) if not store.check([f"{where}/{other}"])]
        raise RankError(
            f"Rank {rank} waited {place.timeout_s:g} s for the other ranks to make this loader, and {named(missing)} "
            "did not come. With mesh=, all ranks of the process group make the same loaders in the same order, as they "
            "make the mesh. To make a loader on some ranks only, pass rank= and world_size= instead."
        ) from exc
    if store.check([f"{where}/failed"]):
        raise RankError(
            f"Rank {rank} came too late to make this loader: other ranks have given up after {place.timeout_s:g} s. "
            "Start the job again, with a longer mesh_timeout_s= if this rank was only slow."
        )
    found = json.loads(store.get(f"{where}/seed"))
    store.delete_key(f"{where}/{rank}")
    for name, value in about.items():
        if found["about"].get(name) != value:
            raise RankError(
                f"The ranks do not make the same loader: {name} is {value!r} on rank {rank}, and "
                f"{found['about'].get(name)!r} on rank 0. All ranks make the same loaders in the same order, each over "
                "the whole dataset: the loader distributes it."
            )
    return int(found["seed"])


def named(ranks: Sequence[int]) -> str:
    """Name ranks in a sentence."""
    if not ranks:
        return "one of them"
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"


class Peers:
    """The ranks that share their batches with this one; `peers_of` makes one for all loaders with the same peers.

    Args:
        ranks: their world ranks, this one included.
        timeout_s: the longest wait for them.
    """

    def __init__(self, ranks: tuple[int, ...], timeout_s: float) -> None:
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._name = f"peers-{zlib.crc32(repr((ranks, timeout_s)).encode())}"
        self._count = 0
        """How often they have met, or were meant to."""
        self._group: Any = None

    # Any: plain values.
    def exchange(self, report: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return the reports of all peers, by their world ranks.

        Raises:
            RankError: a peer does not come.
        """
        store, rank = _store(), dist.get_rank()
        self._count += 1
        store.set(self._key(rank), str(self._count))
        reports: list[Any] = [None] * len(self._ranks)
        try:
            if self._group is None:  # not earlier: a rank may look at a first batch on its own
                self._group = dist.new_group(
                    list(self._ranks),
                    timeout=timedelta(seconds=self._timeout_s),
                    backend="gloo",
                    use_local_synchronization=True,
                )
            dist.all_gather_object(reports, report, group=self._group)
        except (RuntimeError, ValueError) as exc:  # as above
            missing = [peer for peer in self._ranks if self._arrivals(store, peer) < self._count]
            others = [peer for peer in self._ranks if peer != rank]
            raise RankError(
                f"Rank {rank} wanted to compare its batches with {named(others)} after step {report['step']} of epoch "
                f"{report['epoch']}, and {named(missing)} failed, or did not come within {self._timeout_s:g} s. Ranks "
                f"that share batches take the same number of steps. Look at the log of {named(missing)} first. If "
                "ranks leave an epoch at different steps on purpose, pass check=0."
            ) from exc
        return dict(zip(self._ranks, reports, strict=True))

    def _key(self, rank: int) -> str:
        return f"{self._name}/{rank}"

    def _arrivals(self, store: Any, peer: int) -> int:
        key = self._key(peer)
        return int(store.get(key)) if store.check([key]) else 0


def peers_of(place: DataRank) -> Peers:
    """Return the peers of this process."""
    return _peers(dist.group.WORLD, place.peers, place.timeout_s)


@functools.lru_cache(maxsize=8)
def _peers(world: object, ranks: tuple[int, ...], timeout_s: float) -> Peers:
    return Peers(ranks, timeout_s)
