"""The config of a loader: its arguments for one epoch or several, and what follows from them about the order."""

from __future__ import annotations

import functools
import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from feedline.abc.deferred import Target
from feedline.delivery.config import Config
from feedline.delivery.state import Snapshot
from feedline.order.order import Order
from feedline.order.rank_watch import Sharing
from feedline.system.ranks import Share, share_if_known, share_of_group
from feedline.types import StreamSharding

C = TypeVar("C", bound="LoaderConfig")


# Any, throughout: samplers and loaders of any class.
@dataclass(frozen=True, kw_only=True)
class LoaderConfig(Config, ABC):
    """The config of either loader: also what determines the order of its batches."""

    reads: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]
    """The attributes of a loader that its config is made from, and those of its class. A subclass that overrides one
    may return anything at any time.
    """

    sampler: Any = field(default=None, compare=False)
    batch_sampler: Any = field(default=None, compare=False)

    @classmethod
    @abstractmethod
    def of(cls: type[C], loader: Any, options: Mapping[str, Any]) -> C:
        """Return the config of a loader.

        Args:
            loader: the loader.
            options: the fields that are fixed when a loader is made.

        Raises:
            BadOption: the arguments do not fit together.
        """

    def share(self) -> Share:
        """Return the share of this process: as given, by its process group, or what its environment said at first."""
        if self.data_rank is not None:
            return self.data_rank.share
        return share_of_group() or self._launched

    @functools.cached_property
    def _launched(self) -> Share:
        return share_if_known()

    @property
    def shards_itself(self) -> bool:
        """True if the dataset is known to split itself over workers."""
        return False

    @abstractmethod
    def target(self) -> Target | None:
        """Return the target that prepares batches for the device; None if there is none."""

    @abstractmethod
    def order_of(self, sharding: StreamSharding | None) -> Order:
        """Return the order of the loader's batches, if an iterable dataset is split in this way."""

    def order_parts(self) -> tuple[object, ...] | None:
        """Return what the order is made of and may change in place; None if it has to be made anew for each epoch."""
        return None

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

    def check_draws(self, order: object) -> None:
        """Reject values that `next_draws` cannot have returned; a loaded state may be anything."""


def attributes_of(loader: Any) -> tuple[object, ...] | None:
    """Return the values that a config of a loader is made from; None if they may change without being reassigned."""
    kind: Any = type(loader)  # Any: mypy takes classes of unknown objects for unhashable
    read = _reader(kind)
    try:
        return None if read is None else read(vars(loader))
    except KeyError:  # a wrapper, which finds it elsewhere
        return None


@functools.cache
def _reader(kind: type) -> Callable[[dict[str, object]], tuple[object, ...]] | None:
    """Return a function that returns the attributes of a loader of this class; None if its class overrides one."""
    own: Any = [one for one in kind.__mro__ if "_feedline_config" in vars(one)][-1]  # `DataLoader` or `Loader`
    attributes, hooks = own._feedline_config.reads
    for name in (*attributes, *hooks, "__getattribute__", "_feedline_config"):
        if inspect.getattr_static(kind, name, None) is not inspect.getattr_static(own, name, None):
            return None
    return operator.itemgetter(*attributes)
