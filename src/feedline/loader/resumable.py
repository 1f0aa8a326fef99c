"""What both loaders can do with their place in the data: save it, restore it, number epochs, go on without end."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from feedline.abc.source import EpochAware, repeats_itself
from feedline.abc.stateful import check_restorable, is_stateful, restore_end, resumed_after
from feedline.core.fault_budget import FaultBudget
from feedline.driver.broadcast import Broadcast
from feedline.driver.exclusive import ExclusiveBatches, Running
from feedline.driver.resources import Resources
from feedline.errors import DoubtfulArgument, tell
from feedline.faults.log import FaultLog
from feedline.images.placement import Placement, hands_on_images
from feedline.loader.arguments import check_count
from feedline.loader.virtual_epochs import VirtualEpochs
from feedline.order.order import Order
from feedline.order.rank_watch import RankWatch, Sharing
from feedline.ranks import share_if_known
from feedline.state import Snapshot
from feedline.state.checkpoint import resume_of
from feedline.state.epochs import Epochs, Start


class Resumable:
    """Base of the loaders."""

    dataset: Any
    _epochs: Epochs
    _broadcast: Broadcast
    _fault_budget: FaultBudget
    _running: Running
    _rank_watch: RankWatch
    _resources: Resources

    @property
    def _is_map(self) -> bool:
        """True if the dataset has indices."""
        raise NotImplementedError

    @property
    def _samples_per_batch(self) -> int:
        """How many samples a batch has; 1 if samples are delivered one by one."""
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

    def _begin_fault_budget(self, order: Order, start: Start, *, is_map: bool) -> None:
        """Get ready to keep account of an epoch."""
        fault_budget = self._fault_budget
        own_streams = order.unit == "stream batches"  # of which ranks may have more or fewer batches than others
        fault_budget.keeps_steps = not own_streams and max(order.stride()[2], share_if_known().world_size) > 1
        fault_budget.dataset = self.dataset if is_map else None
        fault_budget.counts_known = not order.endless
        resumes = start.snapshot is not None and not start.is_settled and start.snapshot.order.get("consumed", 0) > 0
        fault_budget.begin_epoch(resumes=resumes or (start.snapshot is not None and bool(start.snapshot.streams)))

    @property
    def _given_seed(self) -> int | None:
        """The seed that was given."""
        raise NotImplementedError

    def _order(self) -> Order:
        """Return which batches the loader delivers."""
        raise NotImplementedError

    def _iterate(self, order: Order) -> Any:
        """Begin an iteration."""
        raise NotImplementedError

    def _fresh_seed(self) -> int:
        """Draw a seed, by the loader's own rule."""
        raise NotImplementedError

    def _samplers(self) -> list[Any]:
        """Return what may have a `set_epoch`, besides the dataset; perhaps None, perhaps twice."""
        raise NotImplementedError

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

    def _obey_until_first(
        self, batches: ExclusiveBatches, order: Order, begin_again: Callable[[Any], None], *, kept: bool
    ) -> None:
        """Let an iteration that has begun begin again, if it is told another epoch before its first batch.

        Frameworks make the iterator, then say which epoch it is. Workers may be at work by then, for the wrong one.

        Args:
            batches: the iteration, which is the last that was begun.
            order: what it goes through.
            begin_again: begins it again. It gets the loader.
            kept: True if the loader keeps the iteration, which then must not keep the loader.
        """
        epochs, checkpoint = self._epochs, self._epochs.checkpoint
        assert checkpoint is not None
        has_workers = bool(checkpoint.worker_count)
        heard = self._broadcast.told_count
        loader = weakref.ref(self) if kept else lambda: self

        def obey() -> None:
            this = loader()
            if this is None or epochs.checkpoint is not checkpoint:
                return
            this._rank_watch.first_batch(this._sharing())
            dataset_told = this._broadcast.told_count != heard
            if epochs.begins_again(order, dataset_told=dataset_told and has_workers):
                begin_again(this)

        batches.at_first = obey

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
        is_stream = _reads_stream(order) and not repeats_itself(self.dataset)
        if is_stream and self._epochs.has_not_begun and not self._worker_count:
            self._running.early = self._iterate(order)  # the state of its iterator is known when that is there
        with self._running.still():
            state = self._epochs.state(order, self._first_snapshot, self._opening, self._after_epoch)
        faults = self._fault_budget.state()
        return {**state, "faults": faults} if faults else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state_dict` was taken.

        Raises:
            BadState: the state is damaged, of another version, or of a loader with other data.
        """
        if state_dict == {}:
            tell(
                "The state is empty, so the next iteration begins where it would have begun without it. Give what "
                "state_dict() of a loader has returned; is its key in the checkpoint another one?",
                DoubtfulArgument,
            )
        self._check_draws(_part_of(state_dict, "order"))
        faults = _part_of(state_dict, "faults")
        self._fault_budget.copy().restore(faults)  # before anything changes: it may be damaged
        self._epochs.load(state_dict, self._order())
        if state_dict:
            self._fault_budget.restore(faults)
            self._running.early = None
            self._forget_workers()
        self._broadcast.forget_epoch()

    def _forget_workers(self) -> None:
        """Let the next iteration begin with new workers, as torchdata does: those that are there have moved on."""
        raise NotImplementedError

    def _check_draws(self, order: Any) -> None:
        """Refuse what `_after_epoch` cannot have told, of a state that may be anything."""

    def _after_epoch(self) -> dict[str, Any]:
        """Return what the next epoch draws from, when one has ended."""
        return {}

    def _opening(self, order: Order) -> tuple[dict[str, Any], ...]:
        """Describe the dataset before the first batch of an epoch. New workers get it as it is."""
        if self._worker_count or _reads_stream(order) or not is_stateful(self.dataset):
            return ()
        return ({"place": 0, "dataset": copy.deepcopy(self.dataset.state_dict()), "iterator": None},)

    def _begin_epoch(self, order: Order) -> Start:
        """Say how an iteration begins. What outlives the epoch before is restored first, before anything is drawn."""
        start = self._epochs.begin(order)
        streams = () if start.before is None else start.before.streams
        if self._worker_count or len(streams) != 1:
            return start
        resume = resume_of(streams[0], 1)
        if resume.dataset is not None:
            check_restorable(self.dataset)
            if _reads_stream(order):
                resumed_after(self.dataset, resume.dataset)
            else:
                self.dataset.load_state_dict(resume.dataset)
        if resume.last is not None:
            restore_end(self.dataset, resume.last)
        assert start.snapshot is not None
        return replace(start, snapshot=replace(start.snapshot, streams=()))

    @property
    def _worker_count(self) -> int:
        """How many workers there are; 0 if batches are made in the training loop itself."""
        raise NotImplementedError

    def _first_snapshot(self, order: Order, epoch: int) -> Snapshot:
        """Return the state before the first batch of an epoch, and settle what it would draw."""
        counted = {} if order.unit == "stream batches" else {"consumed": 0}
        return Snapshot(
            epoch,
            seed=order.seed_for(self._given_seed),
            draw_seed=self._fresh_seed() if self._given_seed is None else self._given_seed,
            order={**counted, **order.expected(), **order.settle()},
            dataset_epoch=self._broadcast.told_epoch,
        )

    def _tell_epoch(self, start: Start) -> None:
        """Tell the dataset which epoch begins: one of feedline's own always, any other what a restored state says."""
        if isinstance(self.dataset, EpochAware):
            self._broadcast.call("set_epoch", start.epoch)
            return
        epoch = None if start.snapshot is None else start.snapshot.dataset_epoch
        if epoch is not None and self._broadcast.told_epoch is None and hasattr(self.dataset, "set_epoch"):
            self._broadcast.call("set_epoch", epoch)

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


def _reads_stream(order: Order) -> bool:
    """True if the dataset is iterable."""
    return order.unit in ("stream batches", "stream samples")


def _part_of(state: Any, name: str) -> Any:
    """Return a part of a state. Who reads the rest refuses what is no state at all."""
    return state.get(name, {}) if isinstance(state, Mapping) else {}
