"""Rebuild a loader with other parts. Frameworks do this by creating torch's loader from a few attributes.

Here, a rebuilt loader is a copy, so it keeps all options, and a subclass may have any constructor.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from feedline import samplers
from feedline.abc.framework import Rebuilding
from feedline.loader.arguments import DEFAULT_MESH_TIMEOUT_S
from feedline.loader.base import LoaderBase, config_of, session_of
from feedline.order.rank_watch import RankWatch
from feedline.order.torch_order import adopt_samplers
from feedline.system.ranks import own_share

# Any, here and below: a `feedline.DataLoader`, whose file imports this one.
L = TypeVar("L", bound=Any)


@functools.cache
def _torch_parts(kind: type) -> frozenset[str]:
    """Return the attributes in which torch's own loader, the last base of that module, keeps its arguments."""
    base: Any = [base for base in kind.__mro__ if base.__module__ == "torch.utils.data.dataloader"][-1]
    return frozenset(vars(base([])))


class TorchRebuilding(Rebuilding):
    """The operations on a `feedline.DataLoader` that frameworks need beyond its public methods."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind

    def is_sharded(self, loader: LoaderBase) -> bool:
        config: Any = config_of(loader)  # Any: of a torch loader
        return bool(config.is_sharded(session_of(loader).stream_sharding))

    def with_torch_parts(self, loader: L, other: torch.utils.data.DataLoader[object]) -> L:
        own = _torch_parts(loader.__class__)
        parts = {name: value for name, value in vars(other).items() if name in own}
        return _with(loader, parts, RankWatch(is_over=True))

    def with_batch_size(self, loader: L, batch_size: int) -> L:
        batches = BatchSampler(loader.sampler, batch_size, loader.drop_last)
        return _with(loader, {"batch_size": batch_size, "batch_sampler": batches})

    def own_share(self, loader: L) -> L:
        if config_of(loader).data_rank is not None:
            return loader
        is_sharded = isinstance(loader.dataset, IterableDataset) or self.is_sharded(loader)
        if is_sharded or own_share(None, None, "pad").world_size == 1:
            return loader
        if loader.batch_size is None and loader.batch_sampler is not None:
            return _with(loader, {"batch_sampler": samplers.distribute(loader.batch_sampler)})
        sampler = loader.sampler
        if type(sampler) in (RandomSampler, SequentialSampler):  # which torch's loader creates for shuffle=
            sampler = samplers.DistributedSampler(loader.dataset, shuffle=type(sampler) is RandomSampler)
        else:
            sampler = samplers.distribute(sampler)
        batches = None if loader.batch_size is None else BatchSampler(sampler, loader.batch_size, loader.drop_last)
        return _with(loader, {"sampler": sampler, "batch_sampler": batches})

    def with_mesh(self, loader: L, mesh: Any, data_dims: tuple[str, ...]) -> L:
        if config_of(loader).data_rank is not None:
            return loader
        from feedline.loader.placing import common_seed, data_rank, own_samplers, own_stream

        config: Any = config_of(loader)  # Any: of a torch loader
        place = data_rank(mesh, data_dims, None, None, check=None, timeout_s=DEFAULT_MESH_TIMEOUT_S)
        if config.is_map:
            own_samplers(
                place, loader.dataset, None, loader.sampler, loader.batch_sampler
            )  # it is distributed: checks it
        else:
            own_stream(place, loader.dataset, config.shard)
        twin = copy.copy(loader)
        seed = common_seed(place, config.seed, loader.generator, loader.dataset)
        session_of(twin).set_options(data_rank=place, seed=seed)
        return _with(twin, {"generator": None})

    def coming_epoch(self, loader: LoaderBase) -> int:
        return session_of(loader).epochs.coming_epoch

    def end_epoch(self, loader: LoaderBase) -> None:
        session_of(loader).epochs.end_epoch()

    def skipped(self, loader: LoaderBase) -> int:
        return session_of(loader).skips if "_feedline_session" in vars(loader) else 0

    def skip(self, loader: LoaderBase, count: int) -> None:
        if count or "_feedline_session" in vars(loader):  # a subclass may set 0 before it calls our constructor
            session_of(loader).skips = count


def _with(loader: L, parts: dict[str, object], rank_watch: RankWatch | None = None) -> L:
    twin = copy.copy(loader)
    # Not by setattr: torch forbids it for most of these, since its own loader could not handle it.
    twin.__dict__.update(parts, _iterator=None)
    session_of(twin).rebuilt(session_of(twin).new_config(twin), rank_watch)
    adopt_samplers(twin, session_of(twin).options["seed"])
    return twin
