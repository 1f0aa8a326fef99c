"""Whether and how a loader shards an iterable dataset by itself; samplers that would shard it twice."""

from __future__ import annotations

import math
import sys
from collections.abc import Sized
from dataclasses import replace
from typing import Any

from feedline.abc.source import ShardedSource, StreamSource
from feedline.errors import BadOption, DataWarning, warn_user
from feedline.samplers.steps import Steps
from feedline.system.ranks import TAILS, Share, own_share
from feedline.types import StreamSharding


def ranks_of_stream(dataset: object) -> int | None:
    """Return the number of ranks that a Hugging Face streaming dataset is split over; None for any other dataset.

    Such a dataset splits itself over the workers of a torch loader, with `get_worker_info()`, and over ranks if it
    comes from `split_dataset_by_node`.
    """
    kind = getattr(sys.modules.get("datasets.iterable_dataset"), "IterableDataset", None)
    if kind is None or not isinstance(dataset, kind):
        return None
    split = dataset._distributed  # not public
    return 1 if split is None else int(split.world_size)


def sharding_of(
    dataset: object,
    shard: bool | str | None,
    *,
    batch_size: int | None,
    drop_last: bool,
    is_map: bool,
    shards_itself: bool = False,
    share: Share | None = None,
) -> StreamSharding | None:
    """Return how the loader splits the samples; None if each worker reads its own stream.

    `shard` is the user's argument: True, False, a tail, or None, which means True for feedline's own streams. Datasets
    that are known to split themselves are torch's data pipes and streams of Hugging Face. `share` is this rank's, if it
    was given.
    """
    if not (shard is None or isinstance(shard, bool) or shard in TAILS):
        raise BadOption(f"shard={shard!r} is not one of True, False, {', '.join(map(repr, TAILS))}.")
    if is_map:
        if shard:
            raise BadOption(
                f"shard={shard!r} is for iterable datasets, but this one has __getitem__. Drop shard=; to split the "
                "samples over ranks, use feedline.samplers.DistributedSampler, or distribute() around any sampler."
            )
        return None
    if shards_itself:
        if shard:
            raise BadOption(
                f"shard={shard!r} would split the dataset a second time: torch's data pipes and the streaming datasets "
                "of Hugging Face split themselves over workers. Drop shard=. To split a Hugging Face dataset over "
                "ranks, use split_dataset_by_node(dataset, rank, world_size), from datasets.distributed."
            )
        return None
    if isinstance(dataset, ShardedSource):
        if shard == "exact":
            raise BadOption(
                f"shard={shard!r} does not work with a {type(dataset).__name__}: it splits itself, so the number of "
                "samples of each rank is unknown. Use shard='drop' to end all ranks with the first one, or 'pad' to "
                "end them with the last. Without shard=, each rank ends with its own part."
            )
        return None
    if shard is None:
        shard = isinstance(dataset, StreamSource)
    if shard is False:
        return None
    tail = "pad" if shard is True else str(shard)
    share = own_share(None, None, tail) if share is None else replace(share, tail=tail)
    if (ranks_of_stream(dataset) or 1) > 1:  # already split over ranks: only workers are left
        if shard in TAILS:
            raise BadOption(
                f"shard={shard!r} cannot be combined with split_dataset_by_node: that has split the dataset over "
                "ranks, and each rank ends with its own part. Drop one of the two."
            )
        share = Share()
    if share.tail == "exact" and share.world_size > 1:
        if drop_last:
            raise BadOption(
                "drop_last=True leaves samples out, but shard='exact' promises every sample once. Drop one of the two."
            )
        if (batch_size or 1) == 1:
            raise BadOption(
                f"shard='exact' is not possible with batches of one sample and {share.world_size} ranks: at the end, "
                "some ranks would have a sample and others none. Use a larger batch size, or another tail."
            )
    return StreamSharding(batch_size or 1, share, drop_last)


def tail_of(dataset: object, shard: bool | str | None) -> Share | None:
    """Return this process among all ranks, with its tail, if ranks end an epoch together; None if each ends alone."""
    if not isinstance(dataset, ShardedSource) or shard not in TAILS:
        return None
    share = own_share(None, None, str(shard))
    return share if share.world_size > 1 else None


def steps_of(dataset: Sized, sharding: StreamSharding) -> int | None:
    """Return how many batches of an iterable dataset a rank gets. Raises TypeError: the dataset has no length."""
    return Steps(len(dataset), sharding.batch_size, sharding.share, drop_last=sharding.drop_last).count


def warn_of_two_shares(sampler: object) -> None:
    """Warn if a sampler takes one rank's share of what is already one rank's share: most samples would be left out."""
    shares = [layer for layer in layers_of(sampler) if rank_count(layer) > 1]
    if len(shares) < 2:
        return
    outer, inner = (type(share).__name__ for share in (shares[0], shares[-1]))
    count = math.prod(map(rank_count, shares))
    warn_user(
        f"Samples are split over ranks twice: by a {outer}, and by the {inner} inside it. This rank gets one "
        f"sample in {count}, and most samples reach no rank. Give the loader a sampler that is not distributed, and "
        f"leave the splitting to the code that made the {outer}; or keep the {inner}, and do not let a framework wrap "
        "it (with Lightning: use_distributed_sampler=False).",
        DataWarning,
    )


# Any: samplers and batch samplers of any type.
def layers_of(sampler: object) -> list[Any]:
    """Return a sampler and those inside it, outermost first: feedline's, torch's, and wrappers of frameworks."""
    layers: list[object] = []
    while sampler is not None and not any(sampler is layer for layer in layers):
        layers.append(sampler)
        inside = getattr(sampler, "__dict__", {})
        found = (inside.get(name) for name in ("batch_sampler", "sampler", "_batch_sampler", "_sampler"))
        sampler = next((value for value in found if value is not None), None)
        dataset = inside.get("dataset")  # a DistributedSampler's dataset, in which wrappers hide the sampler
        if sampler is None and any(hasattr(dataset, name) for name in ("num_replicas", "sampler", "_sampler")):
            sampler = dataset
    return layers


def rank_count(sampler: object) -> int:
    """Return how many ranks a sampler splits the sampler inside it over."""
    share = getattr(sampler, "share", None)
    if isinstance(share, Share):
        return int(share.world_size)
    # The second is Accelerate's name for it.
    count = getattr(sampler, "num_replicas", None) or getattr(sampler, "num_processes", None)
    return count if isinstance(count, int) else 1
