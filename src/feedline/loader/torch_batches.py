"""The torch drop-in's iterator: torch's bookkeeping around feedline's batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic

import torch
import torch.distributed as dist
import torch.utils.data
from torch.utils.data import IterDataPipe
from torch.utils.data._utils import pin_memory as torch_pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter
from typing_extensions import TypeVar  # torch depends on it, too

from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.state.epochs import Start
from feedline.errors import warn_user
from feedline.frameworks.torch import seed_pipe, shard_in_worker, shard_pipe
from feedline.frameworks.torch_compile import run_untraced
from feedline.loader.base import session_of
from feedline.loader.iteration import Iteration, Seeds, order_state
from feedline.loader.session import Session
from feedline.loader.torch_config import TorchConfig
from feedline.order.order import Order
from feedline.randomness import scope
from feedline.randomness.keys import epoch_key

B_co = TypeVar("B_co", covariant=True, default=Any)
"""The type of a batch. Any: the result of the default collate function has no known type."""
_profiler = torch.autograd.profiler


@run_untraced
class TorchBatches(Iteration, _BaseDataLoaderIter, Generic[B_co]):  # type: ignore[misc]  # __iter__ has another type
    """Iterate over the batches of a `feedline.DataLoader`.

    Torch's base is there for `isinstance` alone: by it, Lightning knows which iterators it cannot pickle.

    Args:
        session: the loader's session.
        config: the loader's arguments.
        order: which batches it delivers.
        loader: the loader.
    """

    # Any: a `feedline.DataLoader`, whose file imports this one.
    def __init__(self, session: Session, config: TorchConfig, order: Order, loader: Any) -> None:
        self._dataset = config.dataset
        self._index_sampler = config.index_sampler
        self._iterable = not config.is_map
        self._num_workers = config.worker_count
        self._group: dist.ProcessGroup | None = None
        self._count_epoch(loader)
        if self._num_workers and session.tuning is None:  # otherwise "auto" chooses the number
            loader.check_worker_number_rationality()
        super().__init__(session, config, order, loader, _pinner(config) if config.pins else None, config.target())
        if self._resumed is not None:  # only now: the dataset's state may have restored torch's default generator
            config.seeds.begin(config.generator, self._resumed)

    def _count_epoch(self, loader: torch.utils.data.DataLoader[object]) -> None:
        self._length_called: int | None = loader._IterableDataset_len_called
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    def _enter(self, session: Session, config: TorchConfig, order: Order, start: Start, *, first: bool) -> Seeds:
        seeds = config.seeds
        if not first:
            self._announce(session, config, order, start)
            with seeds.drawing():
                seed = _prepare(config, order, start)
            return Seeds(seed, self._next_draw_seed(config, start))
        self._resumed = order_state(start) if start.is_resumed else None
        if start.before is not None or start.is_resumed:
            seeds.begin(config.generator, order_state(start) if start.before is not None else {})
        with seeds.drawing():
            self._shared_seed = self._seed_pipes(config, start.epoch, first=True) if config.is_pipe else None
            self._length = order.length()
            self._announce(session, config, order, start)
            seed = _prepare(config, order, start)
            return Seeds(seed, _draw_seed(config, order, start))

    def _next_draw_seed(self, config: TorchConfig, start: Start) -> int:
        """Return the seed for another epoch of the same workers; torch would not draw a new one for them."""
        if start.snapshot is not None and start.snapshot.draw_seed is not None:
            return start.snapshot.draw_seed
        given = config.seed
        return self.seeds.draw if given is None else given

    def _spec(self, session: Session, config: TorchConfig, start: Start) -> WorkerSpec:
        dataset, init = self._dataset, config.init
        if self._num_workers and config.is_pipe:
            world_size, rank = _distributed_settings(config)
            init = functools.partial(shard_in_worker, init, world_size, rank)
        elif config.is_pipe:
            shard_pipe(dataset, *_distributed_settings(config))
        seed = _base_seed(config, self.seeds.draw, start.epoch) if self._num_workers else 0  # otherwise nobody reads it
        return session.spec(config, dataset, seed, init, self._shared_seed)

    def _before_workers(self, session: Session, config: TorchConfig, order: Order, start: Start) -> None:
        # torch draws the pipe's seed and the order again before the first task. Doing the same leaves the caller's
        # generators, and a sampler that draws early, in the same state as with torch.
        with config.seeds.drawing():
            self._seed_pipes(config, start.epoch, first=False)
            order.prepare(order_state(start))

    def _seed_pipes(self, config: TorchConfig, epoch: int, *, first: bool) -> int | None:
        """Draw the seed that a data pipe shares across workers and ranks."""
        if not (config.is_pipe and isinstance(self._dataset, IterDataPipe)):
            return None
        if config.data_rank is not None and config.seed is not None:  # which is the same on all ranks
            shared = epoch_key(config.seed, epoch) >> 1
            self._dataset = seed_pipe(self._dataset, shared)
            return shared
        if first and dist.is_available() and dist.is_initialized():
            self._group = dist.new_group(backend="gloo")
        seed = torch.empty((), dtype=torch.int64).random_(generator=config.generator)
        if self._group is not None:
            dist.broadcast(seed, src=0, group=self._group)
        shared = int(seed.item())
        self._dataset = seed_pipe(self._dataset, shared)
        return shared

    # Any: a `feedline.DataLoader`, whose file imports this one.
    def _reset(self, loader: Any, first_iter: bool = False, order: Order | None = None) -> None:
        """Start another epoch, under torch's name for it; with the same workers, if they still exist."""
        session = session_of(loader)

        def begin() -> TorchBatches[B_co]:
            config, own = session.prepare(loader, order)
            if not self.can_continue(session, config):
                self.close()
                self.__init__(session, config, own, loader)  # type: ignore[misc]  # in place: wrappers keep this iterator
            else:
                self._count_epoch(loader)
                with config.seeds.drawing():
                    self._shared_seed = self._seed_pipes(config, session.epochs.coming_epoch, first=False)
                self.begin_again(session, config, own)
            return self

        session.running.create(begin, session.free)

    @property
    def _num_yielded(self) -> int:  # type: ignore[override]  # an attribute there
        """Batches of the epoch delivered so far, under torch's name; like torchdata, counts resumed ones too."""
        return self._batches.checkpoint.batch_count()

    def __len__(self) -> int:
        return len(self._index_sampler) if self._length is None else self._length

    def __next__(self) -> B_co:
        if self._listener is not None:
            self._listener.call_if_due()
        if _profiler._is_profiler_enabled:
            scope.ranges = _profiler.record_function
            with _profiler.record_function(self._profile_name):
                batch: B_co = next(self._source)
        else:
            if scope.ranges is not None:
                scope.ranges = None
            batch = self._source.__next__()  # not next(): a signal could arrive after it
        if self._iterable and self._length_called is not None:
            self._check_length()
        return batch

    def _check_length(self) -> None:
        count = self._num_yielded
        if self._length_called is None or count <= self._length_called:
            return
        message = (
            f"Length of IterableDataset {self._dataset} was reported to be {self._length_called}"
            f"(when accessing len(dataloader)), but {count} samples have been fetched. "
        )
        if self._num_workers > 0:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
        warn_user(message, UserWarning)

    @property
    def _workers(self) -> list[Any]:
        """The workers under torch's name for them, also after they have ended: processes or threads.

        Threads have no `pid`. The list is empty without workers, and with Ray, whose workers may be on other machines.
        """
        return [] if self._worker_batches is None else self._worker_batches.worker_objects

    def _shutdown_workers(self) -> None:
        """Close the iterator, under the name that frameworks use for torch's iterators."""
        self.close()


def _prepare(config: TorchConfig, order: Order, start: Start) -> int | None:
    """Prepare the order as torch's samplers do; return its seed, None if it has none."""
    for sampler in order.followers():
        sampler.enter(start.epoch)
    order.prepare(order_state(start))
    if start.snapshot is not None and start.snapshot.seed is not None:
        return start.snapshot.seed
    return order.seed_for(config.seed)


def _draw_seed(config: TorchConfig, order: Order, start: Start) -> int:
    """Return the seed for samples' own random numbers: the loader's seed, or the one that torch draws for workers."""
    known = None if start.snapshot is None else start.snapshot.draw_seed
    if known is not None and (start.is_drawn or "torch_seeds_next" in order_state(start)):
        return known
    given = config.seed
    if given is not None:
        return given if known is None else known
    if start.before is not None and start.before.draw_seed is not None and config.persistent:
        return epoch_key(start.before.draw_seed, start.epoch)  # torch would not draw a new one for persistent workers
    # Draw even if the seed is known: a sampler with the same generator must find it in the same state as at first.
    drawn = config.fresh_seed()
    common = order.common_seed()
    return (drawn if common is None else common) if known is None else known


def _base_seed(config: TorchConfig, draw_seed: int, epoch: int) -> int:
    """Return the seed to which workers add their number."""
    # A state that was saved with a seed may have a larger value than torch's generators accept.
    return draw_seed % (1 << 63) if config.seed is None else epoch_key(draw_seed, epoch) >> 1


def _distributed_settings(config: TorchConfig) -> tuple[int, int]:
    if config.data_rank is not None:
        return config.data_rank.world_size, config.data_rank.rank
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    return 1, 0


def _pinner(config: TorchConfig) -> Callable[[object], object] | None:
    """Return a function that pins a batch that is not pinned yet; None if there is no device to pin it for."""
    if config.pin_device:
        warn_user(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{config.pin_device}'.",
            UserWarning,
        )
    if _has_accelerator():
        return torch_pin_memory.pin_memory
    warn_user(
        "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
        UserWarning,
    )
    return None


def _has_accelerator() -> bool:
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6 and later
    return bool(torch.cuda.is_available() if accelerator is None else accelerator.is_available())


__all__ = ["TorchBatches"]
