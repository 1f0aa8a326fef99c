"""The config of the torch drop-in."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    RandomSampler,
    SequentialSampler,
)

from feedline.abc.memory import Placement
from feedline.abc.source import ShardedSource
from feedline.delivery.config import DEFAULT_DEPTH
from feedline.delivery.state import Snapshot
from feedline.errors import BadOption
from feedline.frameworks.torch_collate import is_default
from feedline.frameworks.torch_samplers import SeedSource, drawn_seed
from feedline.loader.arguments import picking
from feedline.loader.config import LoaderConfig
from feedline.order.order import Order
from feedline.order.rank_watch import Sharing
from feedline.order.sharding import rank_count, ranks_of_stream
from feedline.order.torch_order import torch_order
from feedline.types import StreamSharding

if TYPE_CHECKING:
    from feedline.abc.deferred import Target
    from feedline.workers.ray.options import RayOptions


_ATTRIBUTES = (
    *("dataset", "_dataset_kind", "batch_size", "drop_last", "sampler", "batch_sampler", "collate_fn"),
    *("num_workers", "prefetch_factor", "in_order", "timeout", "persistent_workers", "worker_init_fn"),
    *("_DataLoader__multiprocessing_context", "pin_memory", "pin_memory_device", "generator", "_seeds"),
)
"""The attributes of a `DataLoader` that its config is made from; most of them are torch's."""

_HOOKS = ("_auto_collation", "_index_sampler", "multiprocessing_context", "_default_engine")
"""Attributes of its class that are read, too."""


# Any, throughout: datasets, samplers and batches of any class.
@dataclass(frozen=True, kw_only=True)
class TorchConfig(LoaderConfig):
    """The config of a `feedline.DataLoader`, with the attributes that torch's own constructor has set."""

    reads = _ATTRIBUTES, _HOOKS

    kind: str = field(default="DataLoader", compare=False)
    """The name of the loader's class."""
    index_sampler: Any = field(default=None, compare=False)
    """What the batches are made from: the sampler or the batch sampler."""
    pins: bool = field(default=False, compare=False)
    pin_device: str = field(default="", compare=False)
    seeds: SeedSource = field(default_factory=SeedSource, compare=False)
    """The source of the seeds that are drawn as in torch."""
    generator: torch.Generator | None = field(default=None, compare=False)
    """The generator for orders and seeds; None for torch's own."""

    @classmethod
    def of(cls, loader: Any, options: Mapping[str, Any]) -> TorchConfig:
        count, pins, device = loader.num_workers, bool(loader.pin_memory), options["device"]
        # These raise the same errors as torch's loader.
        range(count)
        if isinstance(loader.sampler, type):
            iter(loader.sampler)  # type: ignore[call-overload]
        return cls(
            **{
                **options,
                "dataset": loader.dataset,
                # By the kind that torch stored, because frameworks replace the dataset.
                "is_map": loader._dataset_kind == torch.utils.data._DatasetKind.Map,
                "batched": bool(loader._auto_collation),
                "batch_size": loader.batch_size,
                "drop_last": bool(loader.drop_last),
                "collate": picking(loader.collate_fn, options, batched=bool(loader._auto_collation)),
                "init": loader.worker_init_fn,
                "worker_count": count,
                "engine": _engine_of(loader, options["engine"], count),
                "depth": DEFAULT_DEPTH if loader.prefetch_factor is None else loader.prefetch_factor,
                "in_order": loader.in_order,
                "timeout_s": loader.timeout,
                "persistent": loader.persistent_workers,
                "context": loader.multiprocessing_context,
                "pin": (pins or getattr(device, "type", None) == "cuda") and torch.cuda.is_available(),
            },
            sampler=loader.sampler,
            batch_sampler=loader.batch_sampler,
            kind=type(loader).__name__,
            index_sampler=loader._index_sampler,  # subclasses override this property
            pins=pins,
            pin_device=loader.pin_memory_device,
            seeds=loader._seeds,
            generator=loader.generator,
        )

    @functools.cached_property
    def has_default_collate(self) -> bool:
        return self.batched and is_default(self.inner_collate)

    @property
    def device_placement(self) -> Placement:
        if self.device is None:
            return Placement.COLLATE
        from feedline.device.torch_target import placement_on

        return placement_on(self.device)

    @property
    def shards_itself(self) -> bool:
        return self.is_pipe or ranks_of_stream(self.dataset) is not None

    def is_sharded(self, sharding: StreamSharding | None) -> bool:
        """True if each rank already gets a share of the samples: by `sharding`, the dataset or its sampler."""
        if self.data_rank is not None:
            return True
        if isinstance(self.dataset, IterableDataset):
            sharded_before = (ranks_of_stream(self.dataset) or 1) > 1
            return sharded_before or sharding is not None or isinstance(self.dataset, ShardedSource)
        return any(rank_count(sampler) > 1 for sampler in self.samplers())

    def target(self) -> Target | None:
        if self.device is None and self.device_transform is None:
            return None
        from feedline.device.torch_target import target_for

        return target_for(self.device, self.device_transform)

    @functools.cached_property
    def is_pipe(self) -> bool:
        """True for one of torch's data pipes."""
        return isinstance(self.dataset, (IterDataPipe, MapDataPipe))

    def order_of(self, sharding: StreamSharding | None) -> Order:
        if not self.is_map and self.index_sampler is not (
            self.sampler if self.batch_sampler is None else self.batch_sampler
        ):
            raise BadOption(
                f"{self.kind} overrides _index_sampler or _auto_collation, but its dataset is iterable: batches are "
                "cut from its stream, without a sampler. Cut them in the dataset's __iter__ (with batch_size=None), "
                "or drop the override."
            )
        order = torch_order(
            self.index_sampler,
            self.batch_size,
            is_map=self.is_map,
            batched=self.batched,
            sharding=sharding,
            share=self.share,
        )
        order.drawing = self.seeds.drawing
        return order

    def order_parts(self) -> tuple[object, ...] | None:
        batch_sampler = self.index_sampler
        if type(batch_sampler) is not BatchSampler:
            return None
        sampler = batch_sampler.sampler
        attributes = vars(sampler) if type(sampler) in (RandomSampler, SequentialSampler) else {}
        return sampler, batch_sampler.batch_size, batch_sampler.drop_last, *attributes.values()

    def sharing(self, sharding: StreamSharding | None) -> Sharing:
        if not self.is_map:
            is_intended = self.is_sharded(sharding) or self.shard is False or isinstance(self.dataset, IterDataPipe)
            is_split = sharding is not None or isinstance(self.dataset, ShardedSource)
            return Sharing(None, "shard", is_intended=is_intended, is_split=is_split)
        return self._sharing

    @functools.cached_property
    def _sharing(self) -> Sharing:
        by_batches = self.batch_size is None and self.batch_sampler is not None
        return Sharing(self.index_sampler, "batch_sampler" if by_batches else "sampler")

    def samplers(self) -> list[object]:
        return [self.batch_sampler, self.sampler, getattr(self.batch_sampler, "sampler", None)]

    def fresh_seed(self) -> int:
        return drawn_seed(self.generator)

    def check_draws(self, order: object) -> None:
        if isinstance(order, Mapping):
            self.seeds.check(self.generator, order)

    def next_draws(self, snapshot: Snapshot) -> dict[str, object]:
        if self.seed is not None:
            return {}
        # Inside an epoch, only for an order that was drawn from torch's default generator: a resumed epoch draws again
        # from all others, and leaves them as they were.
        given = [self.generator, *(getattr(sampler, "generator", None) for sampler in self.samplers())]
        drawn = [snapshot.order.get(name) for name in ("torch_seed", "torch_generator")]
        if not snapshot.ended and (drawn == [None, None] or any(one is not None for one in given)):
            return {}
        return self.seeds.after(self.generator)


def _engine_of(loader: Any, engine: str | RayOptions, worker_count: int) -> str | RayOptions:
    """Return the engine; without workers, the threads that a class of loaders has by default are not meant."""
    is_default = engine == "thread" and engine == loader._default_engine
    return "inline" if is_default and worker_count == 0 else engine
