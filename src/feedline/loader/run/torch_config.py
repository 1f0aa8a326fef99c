"""The config of the torch drop-in."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data
from torch.utils.data import BatchSampler, IterableDataset, IterDataPipe, MapDataPipe

from feedline.abc.deferred import Placement
from feedline.abc.source import ShardedSource
from feedline.delivery.driver.settings import DEFAULT_DEPTH, Settings
from feedline.delivery.driver.tuning import Tuning
from feedline.delivery.state import Snapshot
from feedline.device.torch_target import is_cuda, placement_on, target_for
from feedline.errors import BadOption
from feedline.frameworks.hugging_face import ranks_of_stream
from feedline.frameworks.torch_collate import is_default
from feedline.frameworks.torch_samplers import SeedSource
from feedline.loader.arguments import Options
from feedline.loader.run.config import Config
from feedline.order.order import Order, SampleOrder
from feedline.order.rank_watch import Sharing
from feedline.order.sharding import rank_count
from feedline.order.torch_order import torch_order
from feedline.types import StreamSharding
from feedline.workers.ray.options import RayOptions

if TYPE_CHECKING:
    from feedline.abc.target import Target


class TorchConfig(Config):
    """The config of a `feedline.DataLoader`, with the attributes that torch's own constructor has set."""

    names = (
        *("dataset", "_dataset_kind", "batch_size", "drop_last", "sampler", "batch_sampler", "collate_fn"),
        *("num_workers", "prefetch_factor", "in_order", "timeout", "persistent_workers", "worker_init_fn"),
        *("_DataLoader__multiprocessing_context", "pin_memory", "pin_memory_device", "generator", "_seeds"),
    )
    hooks = (
        *Config.hooks,
        *("_auto_collation", "_index_sampler", "multiprocessing_context", "_default_engine"),
    )

    def __init__(self, loader: Any, options: Options, tuning: Tuning | None) -> None:
        super().__init__(loader, options, tuning)
        self._kind = type(loader).__name__
        # By the kind that torch stored, because frameworks replace the dataset.
        self.is_map = loader._dataset_kind == torch.utils.data._DatasetKind.Map
        self.batched = bool(loader._auto_collation)
        self.collate = loader.collate_fn
        self.init = loader.worker_init_fn
        self.worker_count = loader.num_workers
        self.sampler: Any = loader.sampler
        self.batch_sampler: Any = loader.batch_sampler
        # Subclasses override the properties that torch iterates over.
        self.index_sampler: Any = loader._index_sampler
        """What the batches are made from: the sampler or the batch sampler."""
        self.pins = bool(loader.pin_memory)
        self.pin_device: str = loader.pin_memory_device
        self.seeds: SeedSource = loader._seeds
        """The source of the seeds that are drawn as in torch."""
        self.generator: torch.Generator | None = loader.generator
        """The generator for orders and seeds; None for torch's own."""
        self._order: tuple[tuple[object, ...], Order] | None = None
        """The last order that keeps nothing, and what it was made of."""
        self._others: dict[str, Any] = {
            "engine": _engine_of(loader, options, self.worker_count),
            "depth": DEFAULT_DEPTH if loader.prefetch_factor is None else loader.prefetch_factor,
            "in_order": loader.in_order,
            "timeout_s": loader.timeout,
            "persistent": loader.persistent_workers,
            "context": loader.multiprocessing_context,
        }

    @functools.cached_property
    def has_default_collate(self) -> bool:
        return self.batched and is_default(self.collate)

    @property
    def device_placement(self) -> Placement:
        return placement_on(self.options.device)

    @property
    def shards_itself(self) -> bool:
        return self.is_pipe or ranks_of_stream(self.dataset) is not None

    def is_sharded(self, sharding: StreamSharding | None) -> bool:
        """True if each rank already gets a share of the samples: by `sharding`, the dataset or its sampler."""
        if isinstance(self.dataset, IterableDataset):
            sharded_before = (ranks_of_stream(self.dataset) or 1) > 1
            return sharded_before or sharding is not None or isinstance(self.dataset, ShardedSource)
        return any(rank_count(sampler) > 1 for sampler in self.samplers())

    def target(self) -> Target | None:
        """Return the target that prepares batches for the device; None if there is none."""
        return target_for(self.options.device, self.options.device_transform)

    def _settings(self) -> Settings:
        pin = (self.pins or is_cuda(self.options.device)) and torch.cuda.is_available()
        return self.options.settings(worker_count=self.worker_count, pin=pin, **self._others)

    @functools.cached_property
    def is_pipe(self) -> bool:
        """True for one of torch's data pipes."""
        return isinstance(self.dataset, (IterDataPipe, MapDataPipe))

    def order_of(self, sharding: StreamSharding | None) -> Order:
        if not self.is_map and self.index_sampler is not (
            self.sampler if self.batch_sampler is None else self.batch_sampler
        ):
            raise BadOption(
                f"{self._kind} overrides _index_sampler or _auto_collation, but its dataset is iterable: batches are "
                "cut from its stream, without a sampler. Cut them in the dataset's __iter__ (with batch_size=None), "
                "or drop the override."
            )
        parts = _parts_of(self.index_sampler)
        if parts is not None and self._order is not None and all(map(operator.is_, parts, self._order[0])):
            return self._order[1]
        order = torch_order(
            self.index_sampler,
            self.batch_size,
            is_map=self.is_map,
            batched=self.batched,
            sharding=sharding,
            share=self.share,
        )
        order.drawing = self.seeds.drawing
        if parts is not None and type(order) is SampleOrder:  # it keeps nothing from epoch to epoch
            self._order = parts, order
        return order

    def sharing(self, sharding: StreamSharding | None) -> Sharing:
        if not self.is_map:
            is_settled = (
                self.is_sharded(sharding) or self.options.shard is False or isinstance(self.dataset, IterDataPipe)
            )
            return Sharing(None, "shard", is_settled=is_settled)
        return self._sharing

    @functools.cached_property
    def _sharing(self) -> Sharing:
        by_batches = self.batch_size is None and self.batch_sampler is not None
        return Sharing(self.index_sampler, "batch_sampler" if by_batches else "sampler")

    def samplers(self) -> list[object]:
        return [self.batch_sampler, self.sampler, getattr(self.batch_sampler, "sampler", None)]

    def fresh_seed(self) -> int:
        return fresh_seed(self.generator)

    def check_draws(self, order: object) -> None:
        if isinstance(order, Mapping):
            self.seeds.check(self.generator, order)

    def next_draws(self, snapshot: Snapshot) -> dict[str, object]:
        if self.options.seed is not None:
            return {}
        # Inside an epoch, only for an order that was drawn from torch's default generator: a resumed epoch draws again
        # from all others, and leaves them as they were.
        given = [self.generator, *(getattr(sampler, "generator", None) for sampler in self.samplers())]
        drawn = [snapshot.order.get(name) for name in ("torch_seed", "torch_generator")]
        if not snapshot.ended and (drawn == [None, None] or any(one is not None for one in given)):
            return {}
        return self.seeds.after(self.generator)


def _parts_of(batch_sampler: Any) -> tuple[object, ...] | None:
    """Return what torch's own batch sampler is made of, which may be reassigned; None for others."""
    if type(batch_sampler) is not BatchSampler:
        return None
    sampler = batch_sampler.sampler
    return sampler, batch_sampler.batch_size, batch_sampler.drop_last, getattr(sampler, "data_source", None)


def _engine_of(loader: Any, options: Options, worker_count: int) -> str | RayOptions:
    """Return the engine; without workers, the threads that a class of loaders has by default are not meant."""
    is_default = options.engine == "thread" and options.engine == loader._default_engine
    return "inline" if is_default and worker_count == 0 else options.engine


def fresh_seed(generator: torch.Generator | None) -> int:
    """Draw a seed for workers as torch does."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
