"""A loader's arguments for its run: those of both loaders under one set of names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from feedline.abc.deferred import Placement, hands_on_images
from feedline.delivery.driver.settings import Settings
from feedline.delivery.state import Snapshot
from feedline.loader.arguments import Options
from feedline.order.order import Order
from feedline.order.rank_watch import Sharing
from feedline.types import CollateFunction, StreamSharding

V = TypeVar("V", bound="LoaderView")


# Any, throughout: datasets, samplers, batches and loaders of any class.
class LoaderView(ABC):
    """The arguments of a loader at one moment: programs and frameworks may reassign its attributes at any time.

    A view keeps its loader alive. So a loader makes one for each call, and nothing that a loader holds keeps a view.

    Args:
        loader: the loader.
        options: its options, for a loader that has no run yet.
    """

    is_map: bool
    """True if the dataset has indices."""
    batched: bool
    """False if samples are delivered one by one."""
    collate: CollateFunction
    """The function that makes a batch of samples; without batching, it gets each sample."""
    init: Callable[[int], None] | None
    """The function called when a worker starts."""
    worker_count: int
    """How many workers there are; 0 if batches are made in the training loop itself."""

    def __init__(self, loader: Any, options: Options | None = None) -> None:
        self.loader = loader
        self.options: Options = loader._feedline_run.options if options is None else options
        """The options that both kinds of loaders have; a run may change them."""
        self.dataset = loader.dataset
        self.batch_size: int | None = loader.batch_size
        """Samples in a batch; None for single samples, or if a batch sampler decides."""
        self.drop_last = bool(loader.drop_last)
        """True to drop the last batch if it is not full."""

    def again(self: V) -> V:
        """Return the loader's arguments as they are now."""
        return type(self)(self.loader)

    @property
    @abstractmethod
    def has_default_collate(self) -> bool:
        """True if batches are made by the default collate function."""

    @property
    def device_placement(self) -> Placement:
        """How much of the work on deferred fields the device does."""
        return Placement.COLLATE

    @property
    def placement(self) -> Placement:
        """Where deferred fields, such as images, are finished."""
        deferred = self.has_default_collate and hands_on_images(self.dataset)
        return self.device_placement if deferred else Placement.DATASET

    @property
    def shards_itself(self) -> bool:
        """True if the dataset is known to split itself over workers."""
        return False

    @abstractmethod
    def settings(self) -> Settings:
        """Return the settings for making batches, from the current arguments."""

    @abstractmethod
    def order_of(self, sharding: StreamSharding | None) -> Order:
        """Return the order of the loader's batches, if an iterable dataset is split in this way."""

    @abstractmethod
    def sharing(self, sharding: StreamSharding | None) -> Sharing:
        """Return what determines each rank's samples, if an iterable dataset is split in this way."""

    @abstractmethod
    def samplers(self) -> list[object]:
        """Return objects besides the dataset that may have a `set_epoch`; may contain None and duplicates."""

    @abstractmethod
    def fresh_seed(self) -> int:
        """Draw a seed, by the loader's own rule."""

    def next_draws(self, snapshot: Snapshot) -> dict[str, object]:
        """Return the random state that the next epoch draws from, as it is now; nothing if that is known otherwise."""
        return {}

    @abstractmethod
    def check_draws(self, order: object) -> None:
        """Reject values that `next_draws` cannot have returned; a loaded state may be anything."""
