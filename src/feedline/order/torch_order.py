"""The order of a torch loader."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import BatchSampler

from feedline import samplers
from feedline.abc import sampler as contract
from feedline.frameworks.torch_samplers import (
    GeneratorOrigin,
    index_blocks,
    is_sequential,
    origin_of,
    remembering,
    sampler_behind,
    skipped_by,
)
from feedline.order.order import Order, SampleOrder, SpanOrder, StreamOrder, order_of
from feedline.order.sharding import warn_of_two_shares
from feedline.samplers.sequential import SequentialSampler
from feedline.system.ranks import Share, share_if_known
from feedline.types import IndexBlock, StreamSharding

if TYPE_CHECKING:
    from feedline.order.foreign import ForeignOrder


def torch_order(
    index_sampler: Any,
    batch_size: int | None,
    *,
    is_map: bool = True,
    batched: bool = True,
    sharding: StreamSharding | None = None,
    share: Callable[[], Share] = share_if_known,
) -> Order:
    """Return the order that a loader's arguments define.

    `index_sampler` is what torch's loader would iterate over: a batch sampler if `batched`, else a sampler. An iterable
    dataset has a batch size, and a sharding unless every worker has a stream of its own.
    """
    if not is_map:
        return StreamOrder(batch_size, share) if sharding is None else SpanOrder(sharding)
    index_sampler, skips = skipped_by(index_sampler)
    if batched:
        order = _of_batches(index_sampler, share)
    else:
        order = _of_sampler(index_sampler, index_sampler, None, share, drop_last=False)
    order.skips = skips
    return order


def _of_batches(batch_sampler: Any, share: Callable[[], Share]) -> Order:
    kind = type(batch_sampler)
    # The second is feedline's own, around a third-party sampler; around feedline's it would be an abc.BatchSampler.
    if kind is BatchSampler or (kind.__name__ == "BatchSampler" and kind is samplers.BatchSampler):
        return _of_sampler(
            batch_sampler.sampler, batch_sampler, batch_sampler.batch_size, share, drop_last=batch_sampler.drop_last
        )
    order = order_of(batch_sampler, None, drop_last=False)
    return order or _of_foreign(batch_sampler, share)


def _of_foreign(batch_sampler: Iterable[object], share: Callable[[], Share]) -> ForeignOrder:
    """Return the order of an unknown batch sampler; the sampler behind it may be known."""
    from feedline.order.foreign import ForeignOrder  # only where there is one, as below

    inner = sampler_behind(batch_sampler)
    if origin_of(inner) is None:
        return ForeignOrder(batch_sampler, inner=inner, share=share)
    return ForeignOrder(
        batch_sampler,
        functools.partial(remembering, inner, batch_sampler),
        inner=inner,
        origin=GeneratorOrigin(inner.generator, seeds=False),
        share=share,
    )


def adopt_samplers(loader: Any, seed: int | None) -> None:
    """Make the samplers yield the indices that this loader delivers, even to other code that iterates over them."""
    inner = _sampler_of(loader.batch_sampler)
    if inner is not None:
        vars(loader)["sampler"] = inner  # torch always has a sequential one here, which may not match the batches
    for sampler in (loader.sampler, loader.batch_sampler):
        if isinstance(sampler, contract.Ordered):
            sampler.follow(seed)
    warn_of_two_shares(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)


def _sampler_of(batch_sampler: object) -> object:
    """Return feedline's sampler behind a batch sampler, or None; for a share of batches, a distributed one."""
    inner = getattr(batch_sampler, "sampler", None)
    if isinstance(inner, contract.Sampler):
        return inner
    if not isinstance(batch_sampler, contract.BatchSampler) or batch_sampler.share is None:
        return None
    from feedline.samplers.distributed import BatchIndices, DistributedBatches

    is_shared = isinstance(batch_sampler, DistributedBatches) or batch_sampler.deals_to_ranks
    return BatchIndices(batch_sampler) if is_shared else None


def _of_sampler(
    sampler: Any, whole: Iterable[object], batch_size: int | None, share: Callable[[], Share], *, drop_last: bool
) -> Order:
    """Return the order of a sampler that is cut into batches; torch would iterate over `whole`."""
    order = order_of(sampler, batch_size, drop_last=drop_last)
    if order is not None:
        return order
    if is_sequential(sampler):
        return SampleOrder(SequentialSampler(sampler.data_source), batch_size, drop_last=drop_last)
    from feedline.order.foreign import CutIndices, ForeignOrder

    origin = origin_of(sampler)
    options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last, "origin": origin, "share": share}
    if index_blocks(sampler, {}) is not None:

        def twin() -> Order:
            own = samplers.RandomSampler(
                sampler.data_source, sampler.replacement, sampler._num_samples, generator=sampler.generator
            )
            return SampleOrder(own, batch_size, drop_last=drop_last)

        options["make_twin"] = twin
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
