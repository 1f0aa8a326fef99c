"""Whether and how a loader shares out the samples of an iterable dataset by itself."""

from __future__ import annotations

from typing import Any

from feedline.abc.source import SplitSource, StreamSource
from feedline.errors import BadOption
from feedline.frameworks.hugging_face import ranks_of_stream
from feedline.ranks import own_share
from feedline.steps import Steps
from feedline.types import TAILS, Share, StreamSplit


def split_of(
    dataset: Any,
    shard: bool | str | None,
    *,
    batch_size: int | None,
    drop_last: bool,
    is_map: bool,
    splits_itself: bool,
    default: bool,
) -> StreamSplit | None:
    """Return how samples are shared out, None if each worker has a stream of its own.

    Args:
        dataset: the dataset.
        shard: what the user said: True, False, a tail, or None for nothing.
        batch_size: samples of a batch; None for single samples.
        drop_last: True to leave out a last batch that is not full.
        is_map: True for a map-style dataset, of which there is nothing to share out.
        splits_itself: True if the dataset is known to do so in this loader, as torch's data pipes.
        default: what None means for a dataset that is not feedline's own.
    """
    if not (shard is None or isinstance(shard, bool) or shard in TAILS):
        raise BadOption(f"shard={shard!r} is not one of True, False, {', '.join(map(repr, TAILS))}.")
    if is_map:
        if shard:
            raise BadOption(
                f"shard={shard!r} is about iterable datasets. This one has __getitem__: its workers share the samples "
                "anyway, and ranks do with feedline.samplers.DistributedSampler, or distribute() around any sampler."
            )
        return None
    if splits_itself:
        if shard:
            raise BadOption(
                f"shard={shard!r} would split a second time, and samples would be missing: torch's data pipes and the "
                "streaming datasets of Hugging Face split themselves over workers. Drop it. Over ranks data pipes split "
                "themselves too; for the others write dataset = split_dataset_by_node(dataset, rank, world_size), from "
                "datasets.distributed."
            )
        return None
    if isinstance(dataset, SplitSource):
        if shard in TAILS:
            raise BadOption(
                f"shard={shard!r} is about samples that do not go round, but a {type(dataset).__name__} splits itself, "
                "and ranks end when their own parts do. Drop it."
            )
        return None
    if shard is None:
        shard = default or isinstance(dataset, StreamSource)
    if shard is False:
        return None
    share = own_share(None, None, "pad" if shard is True else str(shard))
    if (ranks_of_stream(dataset) or 1) > 1:  # it was split over ranks before, and workers are left
        if shard in TAILS:
            raise BadOption(
                f"shard={shard!r} is about samples that do not go round, but the dataset was split over ranks by "
                "split_dataset_by_node, and ranks end when their own parts do. Drop one of the two."
            )
        share = Share()
    if share.tail == "exact" and share.world_size > 1:
        if drop_last:
            raise BadOption(
                "drop_last=True leaves samples out, but shard='exact' promises every sample once. Drop one."
            )
        if (batch_size or 1) == 1:
            raise BadOption(
                f"shard='exact' with batches of one sample and {share.world_size} ranks cannot be kept: at the end "
                "some ranks would have a sample and others none. Use a larger batch size, or another tail."
            )
    return StreamSplit(batch_size or 1, share, drop_last)


def steps_of(dataset: Any, split: StreamSplit) -> int | None:
    """Return how many batches a rank gets of an iterable dataset that has a length; raises TypeError if it has none."""
    return Steps(len(dataset), split.batch_size, split.share, drop_last=split.drop_last).count
