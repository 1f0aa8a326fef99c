"""The parts of a loader: its arguments, and the objects built from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from feedline.abc.deferred import Placement, hands_on_images
from feedline.abc.framework import Framework
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver import auto
from feedline.delivery.driver.broadcast import Broadcast
from feedline.delivery.driver.caller_lock import Running
from feedline.delivery.driver.resources import Resources
from feedline.delivery.driver.settings import Settings
from feedline.delivery.driver.tuning import Tuning
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.state.epochs import Epochs
from feedline.faults.policy import OnError, policy_of
from feedline.loader.arguments import Options, check_policy
from feedline.order.order import Order
from feedline.order.rank_watch import RankWatch, Sharing
from feedline.order.sharding import split_of
from feedline.types import DatasetKind, StreamSplit
from feedline.workers.thread_safety import must_leave_threads

L = TypeVar("L", bound="LoaderParts")

adjusters: list[Callable[[LoaderParts], None]] = []
"""Callbacks that get a loader before it fixes how batches are made. Used by `feedline tune --script`."""


class LoaderParts:
    """Arguments and parts of a loader. Arguments that torch has too keep torch's names."""

    dataset: Any
    batch_size: int | None
    drop_last: bool
    _given: Options
    _fault_budget: FaultBudget
    _stream_split: StreamSplit | None
    """How an iterable dataset is split; None if every worker has a stream of its own."""
    _iterator: Any
    """The iterator of persistent workers."""
    _tuning: Tuning | None = None
    """Finds the number of workers; None if you gave the number."""

    # -- what a loader derives from its arguments --------------------------------------------------------------------

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
        """The function that makes a batch of samples; without batching, it gets each sample."""
        raise NotImplementedError

    @property
    def _init(self) -> Callable[[int], None] | None:
        """The function called when a worker starts."""
        raise NotImplementedError

    @property
    def _worker_count(self) -> int:
        """How many workers there are; 0 if batches are made in the training loop itself."""
        raise NotImplementedError

    def _settings(self) -> Settings:
        """Return how to make batches, from the current arguments."""
        raise NotImplementedError

    def _order_of(self, split: StreamSplit | None) -> Order:
        """Return which batches the loader delivers if an iterable dataset is split in this way."""
        raise NotImplementedError

    @property
    def _has_default_collate(self) -> bool:
        """True if the default collate function makes the batches."""
        raise NotImplementedError

    @property
    def _image_placement(self) -> Placement:
        """Where the work on images is finished."""
        deferred = self._has_default_collate and hands_on_images(self.dataset)
        return self._device_placement if deferred else Placement.DATASET

    @property
    def _device_placement(self) -> Placement:
        """How much of the work on images the device does, if the dataset leaves that work to others."""
        return Placement.COLLATE

    def _sharing(self) -> Sharing:
        """Return what decides which rank gets which samples."""
        raise NotImplementedError

    def _samplers(self) -> list[Any]:
        """Return objects besides the dataset that may have a `set_epoch`; may contain None and duplicates."""
        raise NotImplementedError

    def _iterate(self, order: Order) -> Any:
        """Start an iteration."""
        raise NotImplementedError

    def _fresh_seed(self) -> int:
        """Draw a seed, by the loader's own rule."""
        raise NotImplementedError

    def _splits_itself(self) -> bool:
        """True if the dataset is known to split itself over workers."""
        return False

    # -- its parts ---------------------------------------------------------------------------------------------------

    def _set_up(self, given: Options, on_error: OnError, framework: Framework, tuning: Tuning | None) -> None:
        """Create the parts, once the arguments are known."""
        self._given = given
        self._tuning = tuning
        policy = policy_of(on_error)
        check_policy(policy, is_map=self._is_map)
        if type(self).on_error is LoaderParts.on_error:
            vars(self)["on_error"] = on_error  # frameworks look for it here; the property is for changing it
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
            _listener=None,  # it belongs to this loader
            _tuning=None if self._tuning is None else self._tuning.copy(),
        )
        return twin

    def _settings_now(self) -> Settings:
        """Return how to make batches, from the arguments and what tuning has found since."""
        return self._settings() if self._tuning is None else self._tuning.applied_to(self._settings())

    @property
    def tuning(self) -> Tuning | None:
        """What `"auto"` has found so far: `tuning.log` has a line for every decision, `tuning.count` workers.

        None if you gave the number of workers.
        """
        return self._tuning

    def _split_now(self) -> StreamSplit | None:
        """Return how an iterable dataset is split over the current ranks."""
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
            self._stream_split = self._split_now()  # the process group may have been created since
        return self._order_of(self._stream_split)

    def _take_up(self) -> None:
        """Apply reassigned attributes; switch to processes if the dataset is found not reproducible on threads."""
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

    # Any: a dataset of any kind.
    def _spec_of(
        self, dataset: Any, base_seed: int, init: Callable[[int], None] | None, shared_seed: int | None = None
    ) -> WorkerSpec:
        """Return the spec for the workers."""
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
            placement=self._image_placement,
        )

    @property
    def on_error(self) -> OnError:
        """How samples that fail are handled. May be changed between iterations."""
        if "on_error" not in vars(self):
            raise AttributeError("on_error is not known before the loader's constructor was called")
        on_error: OnError = vars(self)["on_error"]
        return on_error

    @on_error.setter
    def on_error(self, on_error: OnError) -> None:
        if "_fault_budget" not in vars(self):  # a subclass sets it before calling our constructor, which sets it too
            return
        policy = policy_of(on_error)
        check_policy(policy, is_map=self._is_map)
        vars(self)["on_error"], self._fault_budget.policy = on_error, policy
        self._iterator = None  # its workers use the old policy, and a loop that is under way ends with them
