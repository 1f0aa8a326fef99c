"""The torch drop-in's arguments, as read by its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data
from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe

from feedline.abc.deferred import Placement
from feedline.abc.source import ShardedSource
from feedline.delivery.driver.settings import DEFAULT_DEPTH, Settings
from feedline.delivery.state import Snapshot
from feedline.device.torch_target import is_cuda, placement_on, target_for
from feedline.frameworks.hugging_face import ranks_of_stream
from feedline.frameworks.torch_collate import is_default
from feedline.frameworks.torch_samplers import SeedSource
from feedline.loader.arguments import Options
from feedline.loader.run.view import LoaderView
from feedline.order.order import Order
from feedline.order.rank_watch import Sharing
from feedline.order.sharding import rank_count
from feedline.order.torch_order import torch_order
from feedline.types import StreamSharding

if TYPE_CHECKING:
    from feedline.abc.target import Target


class TorchView(LoaderView):
    """Reads a `feedline.DataLoader`, and the attributes that torch's own constructor has set."""

    def __init__(self, loader: Any, options: Options | None = None) -> None:
        super().__init__(loader, options)
        # By the kind that torch stored, because frameworks replace the dataset.
        self.is_map = loader._dataset_kind == torch.utils.data._DatasetKind.Map
        self.batched = bool(loader._auto_collation)
        self.collate = loader.collate_fn
        self.init = loader.worker_init_fn
        self.worker_count = loader.num_workers
        self.seeds: SeedSource = loader._seeds
        """The source of the seeds that are drawn as in torch."""
        self.generator: torch.Generator | None = loader.generator
        """The generator for orders and seeds; None for torch's own."""

    @property
    def has_default_collate(self) -> bool:
        return self.batched and is_default(self.collate)

    @property
    def device_placement(self) -> Placement:
        return placement_on(self.options.device)

    @property
    def shards_itself(self) -> bool:
        return isinstance(self.dataset, (IterDataPipe, MapDataPipe)) or ranks_of_stream(self.dataset) is not None

    def is_sharded(self, sharding: StreamSharding | None) -> bool:
        """True if each rank already gets a share of the samples: by `sharding`, the dataset or its sampler."""
        if isinstance(self.dataset, IterableDataset):
            sharded_before = (ranks_of_stream(self.dataset) or 1) > 1
            return sharded_before or sharding is not None or isinstance(self.dataset, ShardedSource)
        return any(rank_count(sampler) > 1 for sampler in self.samplers())

    def target(self) -> Target | None:
        """Return the target that prepares batches for the device; None if there is none."""
        return target_for(self.options.device, self.options.device_transform)

    def settings(self) -> Settings:
        loader, options = self.loader, self.options
        engine = options.engine
        if engine == "thread" and self.worker_count == 0 and engine == loader._default_engine:
            engine = "inline"
        return options.settings(
            worker_count=self.worker_count,
            engine=engine,
            depth=DEFAULT_DEPTH if loader.prefetch_factor is None else loader.prefetch_factor,
            in_order=loader.in_order,
            timeout_s=loader.timeout,
            persistent=loader.persistent_workers,
            context=loader.multiprocessing_context,
            pin=(bool(loader.pin_memory) or is_cuda(options.device)) and torch.cuda.is_available(),
        )

    def order_of(self, sharding: StreamSharding | None) -> Order:
        order = torch_order(self.loader, sharding)
        order.drawing = self.seeds.drawing
        return order

    def sharing(self, sharding: StreamSharding | None) -> Sharing:
        loader = self.loader
        if not self.is_map:
            is_settled = (
                self.is_sharded(sharding) or self.options.shard is False or isinstance(self.dataset, IterDataPipe)
            )
            return Sharing(None, "shard", is_settled=is_settled)
        by_batches = loader.batch_size is None and loader.batch_sampler is not None
        return Sharing(loader._index_sampler, "batch_sampler" if by_batches else "sampler")

    def samplers(self) -> list[object]:
        batches = self.loader.batch_sampler
        return [batches, self.loader.sampler, getattr(batches, "sampler", None)]

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


def fresh_seed(generator: torch.Generator | None) -> int:
    """Draw a seed for workers as torch does."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
