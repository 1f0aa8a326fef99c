"""Rebuild a loader with other parts, as frameworks do by building torch's loader from a few attributes."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from feedline import samplers
from feedline.abc.source import SplitSource
from feedline.delivery.driver.broadcast import Broadcast
from feedline.delivery.driver.resources import Resources
from feedline.frameworks.hugging_face import ranks_of_stream
from feedline.frameworks.torch import TorchFramework
from feedline.loader.base import LoaderBase
from feedline.order.rank_watch import RankWatch
from feedline.order.sharding import rank_count
from feedline.types.ranks import own_share

L = TypeVar("L", bound="Rebuildable")

_TORCH_PARTS = frozenset(vars(torch.utils.data.DataLoader([])))  # type: ignore[arg-type]  # a list will do
"""The attributes in which torch's loader itself keeps its arguments."""


class Rebuildable(LoaderBase):
    """Base of the torch drop-in: lets frameworks change its parts, and keeps the rest.

    A rebuilt loader is a copy, so it keeps all options, and a subclass may have any constructor.
    """

    sampler: Any
    batch_sampler: Any
    num_workers: int
    persistent_workers: bool

    def _adopt_samplers(self) -> None:
        """Make the samplers yield what this loader delivers, also to other code that iterates over them."""
        raise NotImplementedError

    def _with_torch_parts(self: L, other: torch.utils.data.DataLoader[Any]) -> L:
        """Return this loader with the dataset, the samplers and the other arguments of `other`, a loader of torch's.

        The code that made `other` is responsible for the ranks.
        """
        parts = {name: value for name, value in vars(other).items() if name in _TORCH_PARTS}
        return self._with({**parts, "_rank_watch": RankWatch(is_over=True)})

    def _with_batch_size(self: L, batch_size: int) -> L:
        """Return this loader with another batch size."""
        return self._with(
            {"batch_size": batch_size, "batch_sampler": BatchSampler(self.sampler, batch_size, self.drop_last)}
        )

    def _shared_out(self: L) -> L:
        """Return this rank's share of the loader; the loader itself if there is one rank or it is split already."""
        if isinstance(self.dataset, IterableDataset) or self._is_split or own_share(None, None, "pad").world_size == 1:
            return self
        if self.batch_size is None and self.batch_sampler is not None:
            return self._with({"batch_sampler": samplers.distribute(self.batch_sampler)})
        sampler: Any = self.sampler
        if type(sampler) in (RandomSampler, SequentialSampler):  # which torch's loader creates for shuffle=
            sampler = samplers.DistributedSampler(self.dataset, shuffle=type(sampler) is RandomSampler)
        else:
            sampler = samplers.distribute(sampler)
        batches = None if self.batch_size is None else BatchSampler(sampler, self.batch_size, self.drop_last)
        return self._with({"sampler": sampler, "batch_sampler": batches})

    @property
    def _is_split(self) -> bool:
        """True if each rank already gets a share of the samples: by the loader, its dataset or its sampler."""
        if isinstance(self.dataset, IterableDataset):
            split_before = (ranks_of_stream(self.dataset) or 1) > 1
            return split_before or self._stream_split is not None or isinstance(self.dataset, SplitSource)
        found = (self.batch_sampler, self.sampler, getattr(self.batch_sampler, "sampler", None))
        return any(rank_count(sampler) > 1 for sampler in found)

    def _with(self: L, parts: dict[str, Any]) -> L:
        twin = copy.copy(self)
        # Not by setattr: torch forbids it for most of these, since its own loader could not handle it.
        twin.__dict__.update(parts, _iterator=None, _resources=Resources(twin._settings_now(), TorchFramework()))
        twin._broadcast = Broadcast(twin.dataset, watches=twin.num_workers > 0)
        twin._stream_split = twin._split_now()
        twin._adopt_samplers()
        return twin
