"""What a loader is made of: what its arguments say, and the parts that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from feedline.abc.framework import Framework
from feedline.delivery.driver import auto
from feedline.delivery.driver.broadcast import Broadcast
from feedline.delivery.driver.caller_lock import Running
from feedline.delivery.driver.resources import Resources
from feedline.delivery.driver.settings import Settings
from feedline.delivery.driver.tuning import Tuning
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.state.epochs import Epochs
from feedline.faults.policy import OnError, policy_of
from feedline.images.placement import Placement, hands_on_images
from feedline.loader.arguments import Options, check_policy
from feedline.order.order import Order
from feedline.order.rank_watch import RankWatch, Sharing
from feedline.order.sharding import split_of
from feedline.types import DatasetKind, StreamSplit, WorkerSpec
from feedline.workers.thread_safety import must_leave_threads

L = TypeVar("L", bound="LoaderParts")

adjusters: list[Callable[[LoaderParts], None]] = []
"""Called with a loader whenever it is about to settle how batches are made: by `feedline tune --script`."""


class LoaderParts:
    """Arguments and parts of a loader. What torch has, too, goes by torch's names."""

    dataset: Any
    batch_size: int | None
    drop_last: bool
    _given: Options
    _fault_budget: FaultBudget
    _stream_split: StreamSplit | None
    """How an iterable dataset is shared out; None if every worker has a stream of its own."""
    _iterator: Any
    """The iterator of persistent workers."""
    _tuning: Tuning | None = None
    """What finds the number of workers; None if it was given."""

    # -- what a loader says of its arguments -------------------------------------------------------------------------

    @property
    def _is_map(self) -> bool:
        """True if the dataset has indices."""
        raise NotImplementedError

    @property
    def _batched(self) -> bool:
        """False if samples are delivered one by one."""
        raise NotImplementedError

    @property
    def _collate(self) -> Callable[[Any], Any]:
        """What makes a batch of samples, or of each of them if they are not batched."""
        raise NotImplementedError

    @property
    def _init(self) -> Callable[[int], None] | None:
        """What is called when a worker starts."""
        raise NotImplementedError

    @property
    def _worker_count(self) -> int:
        """How many workers there are; 0 if batches are made in the training loop itself."""
        raise NotImplementedError

    def _settings(self) -> Settings:
        """Return how batches are to be made, by what the arguments are now."""
        raise NotImplementedError

    def _order_of(self, split: StreamSplit | None) -> Order:
        """Return which batches the loader delivers, if an iterable dataset is shared out in this way."""
        raise NotImplementedError

    @property
    def _has_default_collate(self) -> bool:
        """True if batches are put together by the default collate function."""
        raise NotImplementedError

    @property
    def _image_placement(self) -> Placement:
        """Who finishes images."""
        deferred = self._has_default_collate and hands_on_images(self.dataset)
        return self._device_placement if deferred else Placement.DATASET

    @property
    def _device_placement(self) -> Placement:
        """What of the work on images is left to the device, where it may be left to anybody."""
        return Placement.COLLATE

    def _sharing(self) -> Sharing:
        """Return what decides which rank gets which samples."""
        raise NotImplementedError

    def _samplers(self) -> list[Any]:
        """Return what may have a `set_epoch`, besides the dataset; perhaps None, perhaps twice."""
        raise NotImplementedError

    def _iterate(self, order: Order) -> Any:
        """Begin an iteration."""
        raise NotImplementedError

    def _fresh_seed(self) -> int:
        """Draw a seed, by the loader's own rule."""
        raise NotImplementedError

    def _splits_itself(self) -> bool:
        """True if the dataset is known to split itself over workers."""
        return False

    # -- its parts ---------------------------------------------------------------------------------------------------

    def _set_up(self, given: Options, on_error: OnError, framework: Framework, tuning: Tuning | None) -> None:
        """Make the parts, once the arguments are known."""
        self._given = given
        self._tuning = tuning
        policy = policy_of(on_error)
        check_policy(policy, is_map=self._is_map)
        if type(self).on_error is LoaderParts.on_error:
            vars(self)["on_error"] = on_error  # where frameworks look for it; the property is how it is changed
        self._fault_budget = FaultBudget(policy)
        self._stream_split = self._split_now()
        self._resources = Resources(self._settings_now(), framework)
        self._epochs = Epochs()
        self._rank_watch = RankWatch()
        self._broadcast = Broadcast(self.dataset, watches=self._worker_count > 0)
        self._running = Running()
        self._probed = False
        self._iterator = None

    def __copy__(self: L) -> L:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(
            self.__dict__,
            _epochs=self._epochs.copy(),
            _fault_budget=self._fault_budget.copy(),
            _broadcast=Broadcast(self.dataset, watches=self._worker_count > 0),
            _running=Running(),
            _iterator=None,
            _listener=None,  # which was told of this loader
            _tuning=None if self._tuning is None else self._tuning.copy(),
        )
        return twin

    def _settings_now(self) -> Settings:
        """Return how batches are to be made, by the arguments and what was found out since."""
        return self._settings() if self._tuning is None else self._tuning.applied_to(self._settings())

    @property
    def tuning(self) -> Tuning | None:
        """What `"auto"` has found out so far: `tuning.log` has a line for every decision, `tuning.count` workers.

        None if the number of workers was given.
        """
        return self._tuning

    def _split_now(self) -> StreamSplit | None:
        """Return how an iterable dataset is shared out, over the ranks that there are now."""
        return split_of(
            self.dataset,
            self._given.shard,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            is_map=self._is_map,
            splits_itself=self._splits_itself(),
        )

    def _order(self) -> Order:
        """Return which batches the loader delivers."""
        if self._stream_split is not None and self._stream_split.share.world_size == 1:
            self._stream_split = self._split_now()  # ranks may have come to be since
        return self._order_of(self._stream_split)

    def _take_up(self) -> None:
        """Go by what was reassigned; leave threads to datasets that are reproducible on them, once it is known."""
        for adjust in adjusters:
            adjust(self)
        if self._tuning is not None and not self._tuning.is_begun:
            spec = self._spec_of(self.dataset, 0, self._init)
            auto.begin(self._tuning, self._settings_now(), spec, self.batch_size, has_indices=self._is_map)
        settings = self._settings_now()
        if self._given.seed is not None and settings.engine_name == "thread" and not self._probed:
            self._probed = True
            if must_leave_threads(self.dataset, self._collate, is_map=self._is_map, batched=self._batched):
                self._given = replace(self._given, engine="process")
                if self._tuning is not None:
                    self._tuning.engine = None
                settings = self._settings_now()
        if settings != self._resources.settings:
            self._resources = Resources(settings, self._resources.framework)

    # Any: a dataset of whatever kind.
    def _spec_of(
        self, dataset: Any, base_seed: int, init: Callable[[int], None] | None, shared_seed: int | None = None
    ) -> WorkerSpec:
        """Return what workers have to know."""
        return WorkerSpec(
            dataset=dataset,
            kind=DatasetKind.MAP if self._is_map else DatasetKind.ITERABLE,
            collate=self._collate,
            framework=self._resources.framework,
            worker_count=self._resources.settings.room,
            base_seed=base_seed,
            batched=self._batched,
            drop_last=self.drop_last,
            init=init,
            shared_seed=shared_seed,
            seeded=self._resources.settings.seeded,
            split=self._stream_split,
            on_error=self._fault_budget.policy if self._fault_budget.guards else None,
            images=self._image_placement,
        )

    @property
    def on_error(self) -> OnError:
        """What becomes of samples that fail. May be changed between iterations."""
        if "on_error" not in vars(self):
            raise AttributeError("on_error is not known before the loader's constructor was called")
        on_error: OnError = vars(self)["on_error"]
        return on_error

    @on_error.setter
    def on_error(self, on_error: OnError) -> None:
        if "_fault_budget" not in vars(self):  # a subclass before it has called this class's constructor, which says it
            return
        policy = policy_of(on_error)
        check_policy(policy, is_map=self._is_map)
        vars(self)["on_error"], self._fault_budget.policy = on_error, policy
        self._iterator = None  # its workers go by the old one, and a loop that is under way ends with them
