"""A loader's arguments for its run: those of both loaders under one set of names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from feedline.abc.deferred import Placement, hands_on_images
from feedline.delivery.driver.settings import Settings
from feedline.loader.arguments import Options
from feedline.order.order import Order
from feedline.order.rank_watch import Sharing
from feedline.types import CollateFunction, StreamSharding


# Any, throughout: datasets, samplers, batches and loaders of any class.
class LoaderView(ABC):
    """Reads a loader's attributes, which programs and frameworks may reassign at any time.

    A view keeps its loader alive. So a loader makes one for each call, and nothing that a loader holds keeps a view.

    Args:
        loader: the loader.
        options: its options, for a loader that has no run yet.
    """

    def __init__(self, loader: Any, options: Options | None = None) -> None:
        self.loader = loader
        self._options = options

    @property
    def options(self) -> Options:
        """The options that both kinds of loaders have; a run may change them."""
        run = vars(self.loader).get("_feedline_run")
        options: Options | None = self._options if run is None else run.options
        assert options is not None
        return options

    @property
    def dataset(self) -> Any:
        """The dataset."""
        return self.loader.dataset

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None for single samples, or if a batch sampler decides."""
        size: int | None = self.loader.batch_size
        return size

    @property
    def drop_last(self) -> bool:
        """True to drop the last batch if it is not full."""
        return bool(self.loader.drop_last)

    @property
    @abstractmethod
    def is_map(self) -> bool:
        """True if the dataset has indices."""

    @property
    @abstractmethod
    def batched(self) -> bool:
        """False if samples are delivered one by one."""

    @property
    @abstractmethod
    def collate(self) -> CollateFunction:
        """The function that makes a batch of samples; without batching, it gets each sample."""

    @property
    @abstractmethod
    def has_default_collate(self) -> bool:
        """True if the default collate function makes the batches."""

    @property
    @abstractmethod
    def init(self) -> Callable[[int], None] | None:
        """The function called when a worker starts."""

    @property
    @abstractmethod
    def worker_count(self) -> int:
        """How many workers there are; 0 if batches are made in the training loop itself."""

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

    def iterate(self, order: Order) -> Iterator[Any]:
        """Start an iteration, or continue with the workers of the last one if they are persistent."""
        iterator: Iterator[Any] = self.loader._iterate(order)
        return iterator

    @abstractmethod
    def fresh_seed(self) -> int:
        """Draw a seed, by the loader's own rule."""

    def after_epoch(self) -> dict[str, object]:
        """Return the random state that the next epoch draws from, after an epoch has ended."""
        return {}

    @abstractmethod
    def check_draws(self, order: object) -> None:
        """Reject values that `after_epoch` cannot have returned; a loaded state may be anything."""
