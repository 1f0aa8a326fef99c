"""What both loaders are: parts made of arguments, and a place in the data that is saved, restored and counted."""

from __future__ import annotations

import copy
import html
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from feedline.abc.framework import Framework
from feedline.abc.source import repeats_itself
from feedline.abc.stateful import is_stateful
from feedline.core.fault_budget import FaultBudget
from feedline.driver import auto
from feedline.driver.broadcast import Broadcast
from feedline.driver.exclusive import Running
from feedline.driver.resources import Resources
from feedline.driver.settings import Settings
from feedline.driver.tuning import Tuning
from feedline.engines.thread_safety import must_leave_threads
from feedline.errors import DoubtfulArgument, tell
from feedline.faults.log import FaultLog
from feedline.faults.policy import OnError, policy_of
from feedline.images.placement import Placement, hands_on_images
from feedline.live import live
from feedline.loader.arguments import Options, check_count, check_policy
from feedline.loader.virtual_epochs import VirtualEpochs
from feedline.observe.stats import Stats
from feedline.order.order import Order
from feedline.order.rank_watch import RankWatch, Sharing
from feedline.order.sharding import split_of
from feedline.ranks import share_if_known
from feedline.state import Snapshot
from feedline.state.epochs import Epochs
from feedline.types import DatasetKind, StreamSplit, WorkerSpec

L = TypeVar("L", bound="LoaderBase")


class LoaderBase:
    """Base of the loaders. What torch has, too, goes by torch's names."""

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
        if type(self).on_error is LoaderBase.on_error:
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
            seeded=self._given.seed is not None,
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

    def stats(self) -> Stats:
        """Return what was measured so far: rates, what training waited for, stages, workers, memory, faults.

        Print it, or read `verdict`: one sentence that says what training waits for. May be called at any time, also
        while somebody iterates. Workers that have ended are not among those whose memory is told.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader(list(range(60)), 2)
            >>> total = sum(int(batch.sum()) for batch in loader)
            >>> stats = loader.stats()
            >>> stats.epoch.batches, stats["batches"], stats.epoch.samples
            (30, 30, 60)
            >>> sorted(stats.epoch.waits)
            ['collate', 'deliver', 'fetch', 'start']
        """
        stats = self._resources.stats(self._fault_budget.log.counts())
        return replace(stats, settings={**stats.settings, "batch_size": self.batch_size})

    def live(self) -> AbstractContextManager[None]:
        """Show on standard error, while the training loop runs inside of this context, what the loader is at.

        On a terminal it is drawn in place once a second if rich is installed; elsewhere a line is written every five
        seconds. `FEEDLINE_LIVE=1` in the environment shows every loader of a program.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader(list(range(60)), 2)
            >>> with loader.live():
            ...     total = sum(int(batch.sum()) for batch in loader)
        """
        return live(self)

    def _repr_html_(self) -> str:
        return f"<p><code>{html.escape(repr(self))}</code></p>{self.stats()._repr_html_()}"

    def close(self) -> None:
        """End iterations and workers, and give the memory back. The loader can be iterated again afterwards.

        A loop that waits for a batch meanwhile, in another thread, ends as at the end of an epoch; `state_dict` tells
        how far it was. May be called from a signal handler.
        """
        self._running.close()
        self._iterator = None
        self._resources.close()

    # -- iteration ---------------------------------------------------------------------------------------------------

    @property
    def faults(self) -> FaultLog:
        """The samples that failed, and what became of them. Part of `state_dict`.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader({7: "seven"}, 1, sampler=[7, 8], on_error="skip")
            >>> [batch for batch in loader]
            [['seven']]
            >>> [(fault.index, fault.error, fault.action) for fault in loader.faults]
            [(8, 'KeyError', 'skip')]
        """
        return self._fault_budget.log

    def __iter__(self) -> Any:  # an iterator; torch declares one of its own classes
        self._epochs.virtual = None
        last = self._epochs.checkpoint
        has_ended = last is not None and last.entry.progress.ended
        self._rank_watch.begin(self.dataset, self._sharing(), has_ended=has_ended)
        return self._begun()

    def _begun(self) -> Any:
        """Return an iteration that begins now, or the one that `state_dict` began to tell how it begins."""
        early = self._running.take_early()
        return self._iterate(self._epochs.order_of(self._order())) if early is None else early

    def virtual_epochs(
        self, steps_per_epoch: int, *, rank: int | None = None, world_size: int | None = None
    ) -> VirtualEpochs:
        """Go through the data without end, in virtual epochs of exactly `steps_per_epoch` batches.

        The order goes on where the last virtual epoch left off, and begins again, shuffled anew, when all samples have
        come. Every batch is full. Ranks get different samples: by the sampler if that is distributed, else by `rank`
        and `world_size`, which default to the process group's. `state_dict` and `load_state_dict` of this loader save
        and restore the place. With samplers of other kinds and iterable datasets one ordinary epoch follows the other,
        with whatever last batch and whatever ranks these have.

        Example:
            >>> from itertools import islice
            >>> from feedline import Loader
            >>> loader = Loader(list(range(5)), 2)
            >>> [[batch.tolist() for batch in epoch] for epoch in islice(loader.virtual_epochs(2), 2)]
            [[[0, 1], [2, 3]], [[4, 0], [1, 2]]]
        """
        return VirtualEpochs(self, steps_per_epoch, rank, world_size)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is: after the batches it has got, whatever was made ahead.

        It is about the iteration that was begun last. With feedline's samplers it is a few numbers, and the number of
        workers, of ranks and the batch size may be others when it is loaded. With samplers of other kinds batches are
        counted, and the sampler is gone through again. What stateful datasets and samplers return is part of it.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader(list(range(6)), 2, shuffle=True, seed=1)
            >>> batches = iter(loader)
            >>> first = next(batches)
            >>> state = loader.state_dict()
            >>> other = Loader(list(range(6)), 2, shuffle=True, seed=1)
            >>> other.load_state_dict(state)
            >>> [batch.tolist() for batch in other] == [batch.tolist() for batch in batches]
            True
        """
        self._running.settle()
        order = self._order()
        is_stream = reads_stream(order) and not repeats_itself(self.dataset)
        if is_stream and self._epochs.has_not_begun and not self._worker_count:
            self._running.early = self._iterate(order)  # the state of its iterator is known when that is there
        state = self._epochs.state(order, self._first_snapshot, self._opening, self._after_epoch)
        last = self._epochs.checkpoint
        faults = self._fault_budget.state(None if last is None else last.entry.progress.faults)
        return {**state, "faults": faults} if faults else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state_dict` was taken.

        Ranks that read shards of their own are given all of their states, if their number may have changed:
        `feedline.merge_states`.

        Raises:
            BadState: the state is damaged, of another version, or of a loader with other data.
        """
        if state_dict == {}:
            tell(
                "The state is empty, so the next iteration begins where it would have begun without it. Give what "
                "state_dict() of a loader has returned; is its key in the checkpoint another one?",
                DoubtfulArgument,
            )
        ranks, share = _part_of(state_dict, "ranks"), share_if_known()
        own = ranks[share.rank] if isinstance(ranks, list) and len(ranks) == share.world_size else state_dict
        self._check_draws(_part_of(own, "order"))
        faults = _part_of(own, "faults")
        self._fault_budget.copy().restore(faults)  # before anything changes: it may be damaged
        self._epochs.load(state_dict, self._order())
        if state_dict:
            self._fault_budget.restore(faults)
            self._running.early = None
            self._iterator = None  # new workers, as with torchdata: those that are there have moved on
        self._broadcast.forget_epoch()

    def _check_draws(self, order: Any) -> None:
        """Refuse what `_after_epoch` cannot have told, of a state that may be anything."""

    def _after_epoch(self) -> dict[str, Any]:
        """Return what the next epoch draws from, when one has ended."""
        return {}

    def _opening(self, order: Order) -> tuple[dict[str, Any], ...]:
        """Describe the dataset before the first batch of an epoch. New workers get it as it is."""
        if self._worker_count or reads_stream(order) or not is_stateful(self.dataset):
            return ()
        return ({"place": 0, "dataset": copy.deepcopy(self.dataset.state_dict()), "iterator": None},)

    def _first_snapshot(self, order: Order, epoch: int) -> Snapshot:
        """Return the state before the first batch of an epoch, and settle what it would draw."""
        counted = {} if order.unit == "stream batches" else {"consumed": 0}
        return Snapshot(
            epoch,
            seed=order.seed_for(self._given.seed),
            draw_seed=self._fresh_seed() if self._given.seed is None else self._given.seed,
            order={**counted, **order.expected(), **order.settle()},
            dataset_epoch=self._broadcast.told_epoch,
        )

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, to the sampler and the dataset too if they have a `set_epoch`.

        Without this, epochs are counted from 0.
        """
        check_count("epoch", epoch, least=0)
        self._epochs.set_epoch(epoch)
        for sampler in {id(sampler): sampler for sampler in self._samplers()}.values():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        if hasattr(self.dataset, "set_epoch"):
            self._broadcast.call("set_epoch", epoch)

    def broadcast(self, name: str, *args: Any) -> None:
        """Call a method of the dataset here and in every worker.

        Workers do so after the batches they have been given already: what changes shows after those that are in flight,
        which are some thirty if they are tiny. An exception in a worker is raised by the next `next()`.

        Example:
            >>> from feedline import Loader
            >>> class Scaled(list):
            ...     scale = 1
            ...     def set_scale(self, scale):
            ...         self.scale = scale
            ...     def __getitem__(self, index):
            ...         return super().__getitem__(index) * self.scale
            >>> loader = Loader(Scaled([1, 2]), 2)
            >>> loader.broadcast("set_scale", 10)
            >>> [batch.tolist() for batch in loader]
            [[10, 20]]
        """
        self._broadcast.call(name, *args)


def reads_stream(order: Order) -> bool:
    """True if the dataset is iterable."""
    return order.unit in ("stream batches", "stream samples")


def _part_of(state: Any, name: str) -> Any:
    """Return a part of a state. Who reads the rest refuses what is no state at all."""
    return state.get(name, {}) if isinstance(state, Mapping) else {}
