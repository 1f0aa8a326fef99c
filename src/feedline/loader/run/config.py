"""A loader's arguments for one epoch or several: those of both loaders under one set of names."""

from __future__ import annotations

import functools
import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from feedline.abc.deferred import Placement, hands_on_images
from feedline.abc.source import EpochAware, repeats_itself
from feedline.abc.stateful import outlives_epoch
from feedline.abc.target import Target
from feedline.delivery.driver.settings import Settings
from feedline.delivery.driver.tuning import Tuning
from feedline.delivery.state import Snapshot
from feedline.loader.arguments import Options
from feedline.order.order import Order
from feedline.order.rank_watch import Sharing
from feedline.types import CollateFunction, Share, StreamSharding
from feedline.types.ranks import share_if_known, share_of_group


# Any, throughout: datasets, samplers, batches and loaders of any class.
class Config(ABC):
    """The arguments of a loader at one moment. Nothing below the loader reads them anywhere else.

    Programs and frameworks may reassign a loader's attributes at any time. So every epoch begins with the current
    config: the last one if nothing was reassigned since, otherwise a new one. A config does not change, and refers
    neither to its loader nor to what the loader keeps.

    Args:
        loader: the loader.
        options: its options.
        tuning: finds the number of workers; None if the user gave it.
    """

    names: tuple[str, ...]
    """The loader's attributes that are read here."""
    hooks: tuple[str, ...] = ("__getattribute__", "_feedline_config")
    """Attributes of its class that are read, too. A subclass that overrides one may return anything at any time."""

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

    def __init__(self, loader: Any, options: Options, tuning: Tuning | None) -> None:
        self.options = options
        """The options that both kinds of loaders have; a run may change them."""
        self.tuning = tuning
        self._attributes = None if tuning is not None else _attributes_of(loader, type(self))
        self.dataset = loader.dataset
        self.batch_size: int | None = loader.batch_size
        """Samples in a batch; None for single samples, or if a batch sampler decides."""
        self.drop_last = bool(loader.drop_last)
        """True to drop the last batch if it is not full."""

    def holds(self, loader: Any, options: Options, tuning: Tuning | None) -> bool:
        """True if this is what a new config of the loader would be."""
        if self._attributes is None or options is not self.options or tuning is not None:
            return False
        now = _attributes_of(loader, type(self))
        return now is not None and all(map(operator.is_, now, self._attributes))

    @functools.cached_property
    def settings(self) -> Settings:
        """How batches are made, with the results of tuning.

        Raises:
            BadOption: the arguments do not fit together.
        """
        settings = self._settings()
        return settings if self.tuning is None else self.tuning.applied_to(settings)

    @functools.cached_property
    def is_epoch_aware(self) -> bool:
        """True if the dataset is told about every epoch."""
        return isinstance(self.dataset, EpochAware)

    @functools.cached_property
    def outlives_epoch(self) -> bool:
        """True if the dataset's state still applies in the next epoch."""
        return outlives_epoch(self.dataset)

    @functools.cached_property
    def repeats_itself(self) -> bool:
        """True if an iterator of the dataset leaves nothing behind."""
        return repeats_itself(self.dataset)

    def share(self) -> Share:
        """Return the share of this process: by its process group, else what its environment said at first."""
        return share_of_group() or self._launched

    @functools.cached_property
    def _launched(self) -> Share:
        return share_if_known()

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
    def target(self) -> Target | None:
        """Return the target that prepares batches for the device; None if there is none."""

    @abstractmethod
    def _settings(self) -> Settings:
        """Return how batches are made, as the user has said."""

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


def _attributes_of(loader: Any, kind: type[Config]) -> tuple[object, ...] | None:
    """Return the values that a config of a loader is made from; None if they may change without being reassigned."""
    loader_kind: Any = type(loader)
    read = _reader(loader_kind, kind)
    try:
        return None if read is None else read(vars(loader))
    except KeyError:  # a wrapper, which finds it elsewhere
        return None


@functools.cache
def _reader(loader: type, kind: type[Config]) -> Callable[[dict[str, object]], tuple[object, ...]] | None:
    """Return a function that returns the attributes of a loader of this class; None if its class overrides one."""
    own = [one for one in loader.__mro__ if "_feedline_config" in vars(one)][-1]  # `DataLoader` or `Loader`
    for name in (*kind.names, *kind.hooks):
        if inspect.getattr_static(loader, name, None) is not inspect.getattr_static(own, name, None):
            return None
    return operator.itemgetter(*kind.names)
