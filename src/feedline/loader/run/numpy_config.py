"""The config of `Loader`."""

from __future__ import annotations

import functools
from typing import Any

from feedline.abc.sampler import draw_seed
from feedline.abc.target import Target
from feedline.collate import default
from feedline.delivery.driver.settings import Settings
from feedline.delivery.driver.tuning import Tuning
from feedline.errors import BadOption
from feedline.loader.arguments import Options
from feedline.loader.run.config import Config
from feedline.order.foreign_order import CutIndices, ForeignOrder
from feedline.order.order import Order, SpanOrder, StreamOrder, order_of
from feedline.order.rank_watch import Sharing
from feedline.system.optional import require
from feedline.types import DatasetKind, StreamSharding


# Any, throughout: datasets, samplers and batches of any class.
class NumpyConfig(Config):
    """The config of a `feedline.Loader`."""

    names = (
        *("dataset", "_kind", "batch_size", "drop_last", "sampler", "batch_sampler", "collate_fn", "_worker_init"),
        *("_fixed", "_own_sampler"),
    )

    def __init__(self, loader: Any, options: Options, tuning: Tuning | None) -> None:
        super().__init__(loader, options, tuning)
        self.batch_sampler: Any = loader.batch_sampler
        self.is_map = loader._kind is DatasetKind.MAP
        self.batched = self.batch_size is not None or self.batch_sampler is not None
        self._collate_fn = loader.collate_fn
        self.collate = self._collate_fn or (default if self.batched else _as_it_is)
        self.init = loader._worker_init
        self._fixed: dict[str, Any] = loader._fixed
        self.worker_count = self._fixed["worker_count"] if tuning is None else tuning.count
        self.given_sampler: Any = loader.sampler
        self.sampler: Any = loader.sampler if loader._own_sampler is None else loader._own_sampler
        """The sampler of single samples: the given one, or the one made for `shuffle`."""

    @functools.cached_property
    def has_default_collate(self) -> bool:
        collate = self._collate_fn
        return self.batched and (collate is None or getattr(collate, "is_default", False))

    def _settings(self) -> Settings:
        return self.options.settings(**self._fixed)

    def order_of(self, sharding: StreamSharding | None) -> Order:
        size, drop_last, batch_sampler = self.batch_size, self.drop_last, self.batch_sampler
        if not self.is_map:
            return StreamOrder(size) if sharding is None else SpanOrder(sharding)
        if batch_sampler is not None:
            order = order_of(batch_sampler, None, drop_last=False)
            return order or ForeignOrder(batch_sampler, share=self.share())
        sampler = self.sampler
        order = order_of(sampler, size, drop_last=drop_last)
        if order is not None:
            return order
        return ForeignOrder(
            sampler,
            None if size is None else lambda _: CutIndices(sampler, size, drop_last=drop_last),
            inner=sampler if size is not None else None,
            batch_size=size,
            share=self.share(),
        )

    def sharing(self, sharding: StreamSharding | None) -> Sharing:
        if not self.is_map:
            return Sharing(None, "shard", is_settled=True)  # sharded by default, unless the user turned it off
        if self.batch_sampler is not None:
            return Sharing(self.batch_sampler, "batch_sampler")
        return Sharing(self.sampler, "sampler")

    def samplers(self) -> list[object]:
        return [self.given_sampler, self.batch_sampler]

    def target(self) -> Target | None:
        """Return the target that prepares batches for the device; None if there is no device."""
        device, transform = self.options.device, self.options.device_transform
        if device is None and transform is None:
            return None
        if device is None:
            raise BadOption("device_transform= needs device=. Without one, transform the batches or the samples.")
        require("jax", extra="jax", purpose=f"device={device!r}")
        from feedline.device.jax_target import JaxTarget

        return JaxTarget(device, transform)

    def fresh_seed(self) -> int:
        return draw_seed()

    def check_draws(self, order: object) -> None:
        pass  # `next_draws` saves nothing to check


def _as_it_is(sample: object) -> object:
    return sample
