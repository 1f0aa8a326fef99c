"""Any sampler, shared among ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from feedline import abc
from feedline.errors import BadOption
from feedline.ranks import own_share
from feedline.samplers.batch import BatchSampler
from feedline.samplers.distributed import Distributed
from feedline.samplers.distributed_batches import DistributedBatches
from feedline.samplers.foreign import ForeignBatchSampler, ForeignSampler, yields_batches
from feedline.types import Share, Tail


# Any: a foreign sampler is whatever can be iterated over.
def distribute(
    sampler: abc.Sampler | abc.BatchSampler | Iterable[Any],
    rank: int | None = None,
    world_size: int | None = None,
    *,
    tail: Tail = "pad",
) -> abc.Sampler | abc.BatchSampler:
    """Return this rank's share of a sampler or batch sampler: feedline's, torch's, a list, or your own.

    Batches that are cut from one of feedline's samplers are cut from the share of its indices. Other batches are
    shared as they are. What is neither feedline's nor a list is iterated over on each rank, an epoch at a
    time, with `random`, `numpy.random` and torch's default generator seeded alike for that time, so that the ranks see
    the same order. A sampler that has a generator of its own must be given one that is seeded alike on all ranks.

    Args:
        sampler: Needs a length unless it is feedline's.
        rank: This one; from torch's or JAX's process group or RANK if None, else 0.
        world_size: Number of ranks; from torch's or JAX's process group or WORLD_SIZE if None, else 1.
        tail: What becomes of indices or batches that do not go round. "pad" repeats some from the beginning, "drop"
            leaves them out. "exact" does neither: the last ranks may have an index less, and batches of the last round
            are split so that every rank has one.

    Raises:
        BadOption: the sampler is shared already, or has no length, or rank and world size make no sense.

    Example:
        >>> [list(distribute([10, 20, 30], rank, 2)) for rank in range(2)]
        [[10, 30], [20, 10]]
    """
    share = own_share(rank, world_size, tail)
    is_found = rank is None and world_size is None
    _refuse_shared(sampler)
    if isinstance(sampler, abc.Sampler):
        return Distributed(sampler, share, is_found=is_found)
    if isinstance(sampler, abc.BatchSampler):
        return _distributed_batches(sampler, share, is_found=is_found)
    if not hasattr(sampler, "__len__"):
        raise BadOption(
            f"{sampler!r} has no length, so that nobody knows how much of it each of {share.world_size} ranks gets. "
            "Give it `__len__`, or make a feedline.abc.Sampler of it."
        )
    if yields_batches(sampler):
        return DistributedBatches(ForeignBatchSampler(sampler), share, is_found=is_found)
    return Distributed(ForeignSampler(sampler), share, is_found=is_found)


def _distributed_batches(sampler: abc.BatchSampler, share: Share, *, is_found: bool) -> abc.BatchSampler:
    parts = sampler.cut_from()
    if parts is None:
        return DistributedBatches(sampler, share, is_found=is_found)
    indices, batch_size, drop_last = parts
    _refuse_shared(indices)
    batches = BatchSampler(Distributed(indices, share, is_found=is_found), batch_size, drop_last)
    assert isinstance(batches, abc.BatchSampler)
    return batches


def _refuse_shared(sampler: Any) -> None:
    inner = sampler
    while inner is not None:
        if getattr(inner, "share", None) is not None or hasattr(inner, "num_replicas"):
            raise BadOption(
                f"{sampler!r} is one rank's share already, and a share of a share would leave indices out. "
                "Distribute the sampler it was made from."
            )
        inner = getattr(inner, "sampler", None)
