"""The order of a torch loader."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray
from torch.utils.data import BatchSampler

from feedline import abc, samplers
from feedline.errors import BadOption
from feedline.frameworks.accelerate import sampler_behind, skipped_by
from feedline.frameworks.torch_samplers import GeneratorOrigin, index_blocks, is_sequential, origin_of, remembering
from feedline.order.foreign_order import CutIndices, ForeignOrder
from feedline.order.order import Order, SampleOrder, SpanOrder, StreamOrder, order_of
from feedline.samplers import SequentialSampler
from feedline.samplers.distributed import BatchIndices, DistributedBatches
from feedline.types import IndexBlock, StreamSharding
from feedline.types.ranks import share_if_known


def torch_order(loader: torch.utils.data.DataLoader[object], sharding: StreamSharding | None) -> Order:
    """Return the order that a loader's arguments define."""
    # Not loader.batch_sampler and loader.sampler: subclasses override the properties that torch iterates over.
    index_sampler: Any = loader._index_sampler
    if loader._dataset_kind == torch.utils.data._DatasetKind.Iterable:
        if index_sampler is not (loader.sampler if loader.batch_sampler is None else loader.batch_sampler):
            raise BadOption(
                f"{type(loader).__name__} overrides _index_sampler or _auto_collation, but its dataset is iterable: "
                "batches are cut from its stream, without a sampler. Cut them in the dataset's __iter__ (with "
                "batch_size=None), or drop the override."
            )
        return StreamOrder(loader.batch_size) if sharding is None else SpanOrder(sharding)
    index_sampler, skips = skipped_by(index_sampler)
    batched = loader._auto_collation
    order = _of_batches(index_sampler) if batched else _of_sampler(index_sampler, index_sampler, None, drop_last=False)
    order.skips = skips
    return order


def _of_batches(batch_sampler: Any) -> Order:
    # The second is feedline's own, around a third-party sampler; around feedline's it would be an abc.BatchSampler.
    if type(batch_sampler) in (BatchSampler, samplers.BatchSampler):
        return _of_sampler(
            batch_sampler.sampler, batch_sampler, batch_sampler.batch_size, drop_last=batch_sampler.drop_last
        )
    order = order_of(batch_sampler, None, drop_last=False)
    return order or _of_foreign(batch_sampler)


def _of_foreign(batch_sampler: Iterable[object]) -> ForeignOrder:
    """Return the order of an unknown batch sampler; the sampler behind it may be known."""
    inner, share = sampler_behind(batch_sampler), share_if_known()
    if origin_of(inner) is None:
        return ForeignOrder(batch_sampler, inner=inner, share=share)
    return ForeignOrder(
        batch_sampler,
        functools.partial(remembering, inner, batch_sampler),
        inner=inner,
        origin=GeneratorOrigin(inner.generator, seeds=False),
        share=share,
    )


def sampler_of(batch_sampler: object) -> object:
    """Return feedline's sampler behind a batch sampler, or None; for a share of batches, a distributed one."""
    if isinstance(batch_sampler, DistributedBatches):
        return BatchIndices(batch_sampler)
    inner = getattr(batch_sampler, "sampler", None)
    return inner if isinstance(inner, abc.Sampler) else None


def _of_sampler(sampler: Any, whole: Iterable[object], batch_size: int | None, *, drop_last: bool) -> Order:
    """Return the order of a sampler that is cut into batches; torch would iterate over `whole`."""
    order = order_of(sampler, batch_size, drop_last=drop_last)
    if order is not None:
        return order
    if is_sequential(sampler):
        return SampleOrder(SequentialSampler(sampler.data_source), batch_size, drop_last=drop_last)
    origin = origin_of(sampler)
    options: dict[str, Any] = {"batch_size": batch_size, "origin": origin, "share": share_if_known()}
    if index_blocks(sampler, {}) is not None:
        twin = samplers.RandomSampler(
            sampler.data_source, sampler.replacement, sampler._num_samples, generator=sampler.generator
        )
        options["twin"] = SampleOrder(twin, batch_size, drop_last=drop_last)
        return ForeignOrder(whole, functools.partial(_blocks, sampler, batch_size, drop_last), **options)
    if origin is not None:
        return ForeignOrder(whole, functools.partial(remembering, sampler, whole), **options)
    if batch_size is None:
        return ForeignOrder(whole, **options)
    return ForeignOrder(whole, lambda _: CutIndices(sampler, batch_size, drop_last=drop_last), inner=sampler, **options)


def _blocks(sampler: object, batch_size: int | None, drop_last: bool, origin: dict[str, object]) -> Iterator[object]:
    blocks = index_blocks(sampler, origin)
    assert blocks is not None
    if batch_size is None:
        return (index for block in blocks for index in block.tolist())
    return batches_of(blocks, batch_size, drop_last=drop_last)


def batches_of(blocks: Iterable[NDArray[np.int64]], batch_size: int, *, drop_last: bool) -> Iterator[IndexBlock]:
    """Cut a stream of index blocks into batches.

    A block is requested only when the current batch cannot be filled without it, as if the indices came one by one.

    Example:
        >>> import numpy as np
        >>> [b.array.tolist() for b in batches_of([np.arange(3), np.arange(3, 5)], 2, drop_last=False)]
        [[0, 1], [2, 3], [4]]
    """
    rest = np.empty(0, np.int64)
    for block in blocks:
        if len(rest):
            block = np.concatenate([rest, block])
        whole = len(block) // batch_size * batch_size
        for start in range(0, whole, batch_size):
            yield IndexBlock(block[start : start + batch_size])
        rest = block[whole:]
    if len(rest) and not drop_last:
        yield IndexBlock(rest)
