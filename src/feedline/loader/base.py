"""The public methods that both loaders share. They delegate to the loader's `Session`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from feedline.abc.framework import Framework
from feedline.errors import BadOption, StateWarning, warn_user
from feedline.faults.log import FaultLog
from feedline.faults.policy import OnError, policy_of
from feedline.frameworks.torch_compile import run_untraced
from feedline.loader.arguments import check_count, check_policy
from feedline.types import State

if TYPE_CHECKING:
    from feedline.delivery.driver.tuning import Tuning
    from feedline.insight.stats import Stats
    from feedline.loader.config import LoaderConfig
    from feedline.loader.session import Session
    from feedline.loader.virtual_epochs import VirtualEpochs
    from feedline.order.order import Order

L = TypeVar("L", bound="LoaderBase")


@run_untraced
class LoaderBase:
    """Base of the loaders."""

    # Any: datasets of any class.
    dataset: Any
    batch_size: int | None
    drop_last: bool
    _feedline_session: Session
    # Any: an iterator of either loader.
    _iterator: Any
    """The iterator of persistent workers."""
    _feedline_config: type[LoaderConfig]

    def _set_up(
        self, options: Mapping[str, Any], on_error: OnError, framework: Framework, tuning: Tuning | None
    ) -> None:
        """Create the session, once the arguments are known."""
        from feedline.loader.session import Session  # loads much: not before there is a loader

        config = self._feedline_config.of(self, options)
        if tuning is not None:
            config = tuning.applied_to(config)
        policy = policy_of(on_error)
        check_policy(policy, is_map=config.is_map)
        if getattr(config.batch_sampler, "deals_to_ranks", False) and hasattr(config.dataset, "__len__"):
            config.batch_sampler.check_dataset(config.dataset)
        if type(self).on_error is LoaderBase.on_error:
            vars(self)["on_error"] = on_error  # frameworks look for it here; the property is for changing it
        self._feedline_session = Session(config, options, policy, framework, tuning)
        if config.worker_count:
            self._feedline_session.resources.import_engine()
        self._iterator = None

    def __copy__(self: L) -> L:
        twin = type(self).__new__(type(self))
        session = self._feedline_session.copy()
        twin.__dict__.update(self.__dict__, _iterator=None, _feedline_session=session)
        session.rebuilt(session.new_config(twin))
        return twin

    @property
    def on_error(self) -> OnError:
        """How samples that fail are handled. May be changed between iterations."""
        if "on_error" not in vars(self):
            raise AttributeError("on_error is not known before the loader's constructor has been called")
        on_error: OnError = vars(self)["on_error"]
        return on_error

    @on_error.setter
    def on_error(self, on_error: OnError) -> None:
        if "_feedline_session" not in vars(
            self
        ):  # a subclass sets it before calling our constructor, which sets it too
            return
        policy = policy_of(on_error)
        check_policy(policy, is_map=config_of(self).is_map)
        vars(self)["on_error"] = on_error
        self._feedline_session.fault_budget.use(policy)  # the next epoch starts new workers: see `Session.made_of`

    @property
    def tuning(self) -> Tuning | None:
        """The values that `"auto"` has chosen so far; None if you gave the number of workers.

        `tuning.log` has a line for every decision; `tuning.count` is the number of workers.
        """
        session = vars(self).get("_feedline_session")
        return None if session is None else session.tuning

    def stats(self) -> Stats:
        """Return the measurements so far: rates, what training waited for, stages, workers, memory, faults.

        Print it, or read `verdict`: what training waits for, and what to do about it. You may call this at any time,
        even during an iteration. Memory figures leave out workers that have ended.

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
        session, config = self._feedline_session, config_of(self)
        return session.resources.stats(config.batch_size, session.tuning, session.fault_budget.log)

    def on_stats(self, callback: Callable[[Stats], object] | None, *, every_s: float = 10.0) -> None:
        """Call `callback` with `stats()` about every `every_s` seconds during iteration.

        The call happens on the training loop's thread, when it requests a batch. So the callback may log to W&B,
        MLflow, TensorBoard or any other tool that must be called from there, and `next()` raises its exceptions. Takes
        effect from the next epoch on. A loader has one callback; None removes it.

        Example:
            >>> from feedline import Loader
            >>> loader, logged = Loader(list(range(6)), 2), []
            >>> loader.on_stats(lambda stats: logged.append(stats.flat()), every_s=0)
            >>> batches = list(loader)
            >>> [figures["feedline/epoch/batches"] for figures in logged]
            [0, 1, 2, 3]
        """
        if not (callback is None or callable(callback)):
            raise BadOption(f"on_stats() got {callback!r}, which cannot be called. Pass a function that takes stats.")
        if not every_s >= 0:
            raise BadOption(
                f"every_s={every_s!r} is not a time between two calls. Give seconds, or 0 to call for every batch."
            )
        from feedline.loader.session import Listener

        reference = weakref.ref(self)

        def stats() -> Stats | None:
            loader = reference()
            return None if loader is None else loader.stats()

        self._feedline_session.listener = None if callback is None else Listener(stats, callback, every_s)

    def live(self) -> AbstractContextManager[None]:
        """Write the loader's progress to standard error every five seconds while the loop runs inside this context.

        `FEEDLINE_LIVE=1` in the environment shows every loader of a program.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader(list(range(60)), 2)
            >>> with loader.live():
            ...     total = sum(int(batch.sum()) for batch in loader)
        """
        from feedline.loader.live import live  # imported by few programs

        config_of(self)  # changed arguments replace the counters
        return live(type(self.dataset).__name__, self._feedline_session)

    def close(self) -> None:
        """Stop iterations and workers, and free their memory. You can iterate over the loader again afterwards.

        A loop in another thread that is waiting for a batch ends as at the end of an epoch; `state_dict` returns its
        position. If another thread is inside `iter()` at that moment, its iterator has no batches. May be called from a
        signal handler. A `with` statement closes the loader at its end.

        Example:
            >>> from feedline import Loader
            >>> with Loader(list(range(6)), 2, workers=1, engine="thread") as loader:
            ...     [batch.tolist() for batch in loader]
            [[0, 1], [2, 3], [4, 5]]
        """
        self._iterator = None
        self._feedline_session.close()

    def __enter__(self: L) -> L:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def faults(self) -> FaultLog:
        """The samples that failed, and how each failure was handled. Part of `state_dict`.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader({7: "seven"}, 1, sampler=[7, 8], on_error="skip")
            >>> [batch for batch in loader]
            [['seven']]
            >>> [(fault.index, fault.error, fault.action) for fault in loader.faults]
            [(8, 'KeyError', 'skip')]
        """
        return self._feedline_session.fault_budget.log

    def __iter__(self) -> Any:  # an iterator; torch declares one of its own classes
        self._feedline_session.epochs.virtual = None
        return self._iterate(None)

    def _iterate(self, order: Order | None) -> Iterator[object]:
        """Start an iteration, or continue with the workers of the last one if they are persistent.

        Args:
            order: which batches it delivers; None for the loader's own order.
        """
        raise NotImplementedError

    def virtual_epochs(
        self, steps_per_epoch: int, *, rank: int | None = None, world_size: int | None = None
    ) -> VirtualEpochs:
        """Iterate over the data endlessly, in virtual epochs of exactly `steps_per_epoch` batches.

        The order continues where the last virtual epoch stopped. When all samples have been delivered, it starts over,
        reshuffled. Every batch is full. Ranks get different samples: by the sampler if that is distributed, else by
        `rank` and `world_size`, which default to the process group's. `state_dict` and `load_state_dict` of this loader
        save and restore the position. With samplers that are not feedline's, and with iterable datasets, ordinary
        epochs follow one another: each keeps its own last batch, and its split over ranks.

        Example:
            >>> from itertools import islice
            >>> from feedline import Loader
            >>> loader = Loader(list(range(5)), 2)
            >>> [[batch.tolist() for batch in epoch] for epoch in islice(loader.virtual_epochs(2), 2)]
            [[[0, 1], [2, 3]], [[4, 0], [1, 2]]]
        """
        from feedline.loader.virtual_epochs import VirtualEpochs  # imported by few programs

        return VirtualEpochs(self._feedline_session, self, steps_per_epoch, rank, world_size)

    def state_dict(self) -> State:
        """Return the training loop's position: after the batches it has received, not those prefetched.

        The state describes the iteration that started last. With feedline's samplers it is a few numbers, and you may
        change the number of workers, the number of ranks and the batch size before loading it. With other samplers,
        batches are counted and the sampler is replayed. The states of stateful datasets and samplers are included.

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
        return self._feedline_session.state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume the next iteration where `state_dict` was taken.

        If each rank reads its own shards and the number of ranks may have changed, give each rank the states of all
        ranks, merged with `feedline.merge_states`.

        Raises:
            BadState: the state is damaged, or from another version or from a loader with other data.
        """
        if isinstance(state_dict, dict) and not state_dict:  # not `== {}`: arrays compare elementwise
            warn_user(
                "The state is empty, so it changes nothing, as with torchdata. Pass the result of a loader's "
                "state_dict(), and check that you use the right key of the checkpoint.",
                StateWarning,
            )
        self._feedline_session.load(config_of(self), state_dict)
        if state_dict:
            self._iterator = None  # new workers, as with torchdata: the existing ones have moved on

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, also on the sampler and the dataset if they have a `set_epoch`.

        Without this call, epochs count up from 0.
        """
        check_count("epoch", epoch, least=0)
        self._feedline_session.set_epoch(config_of(self), epoch)

    def broadcast(self, name: str, *args: object) -> None:
        """Call a method of the dataset in this process and in every worker.

        A worker makes the call after the batches already assigned to it, so the change shows after all batches in
        flight: about thirty if they are tiny. If the call raises an exception in a worker, the next `next()` raises it.

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
        self._feedline_session.broadcast.call(name, *args)


def session_of(loader: LoaderBase) -> Session:
    """Return the session of a loader, for feedline's own tools and frameworks."""
    return loader._feedline_session


def config_of(loader: LoaderBase) -> LoaderConfig:
    """Return a loader's current arguments."""
    return loader._feedline_session.config_of(loader)
