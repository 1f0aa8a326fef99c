"""What `iter(loader)` returns for the torch drop-in: torch's bookkeeping around feedline's batches."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.utils.data
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data._utils import pin_memory as torch_pin_memory

from feedline.abc.source import repeats_itself
from feedline.abc.stateful import outlives_epoch
from feedline.frameworks.torch import TorchFramework
from feedline.frameworks.torch_pipes import seed_pipe, shard_in_worker, shard_pipe
from feedline.keys import epoch_key
from feedline.loader.batches import WorkerBatches, begin_epoch
from feedline.loader.bookmark import Bookmark
from feedline.loader.driver import Driver
from feedline.loader.inline_batches import InlineBatches
from feedline.loader.ledger import Start
from feedline.loader.order import Entry, Order
from feedline.types import DatasetKind, Key, WorkerSpec

if TYPE_CHECKING:
    from feedline.loader.torch import DataLoader

_profiler: Any = torch.autograd.profiler


class TorchBatches(Iterator[Any]):
    """Iterates over the batches of one of torch's loaders."""

    def __init__(self, loader: DataLoader[Any], order: Order) -> None:
        self._dataset = loader.dataset
        self._index_sampler = loader._index_sampler
        self._iterable = loader._dataset_kind == torch.utils.data._DatasetKind.Iterable
        self._num_workers = loader.num_workers
        self._group: Any = None
        self._batches: InlineBatches | WorkerBatches
        _warn_about_pinning(loader)
        start = loader._begin_epoch(order)
        if start.before is not None or start.is_resumed:
            loader._seeds.begin(loader.generator, _order_state(start))
        with loader._seeds.drawing():
            shared_seed = self._seed_pipes(loader, first=True)
            self._length = order.length()
            loader._begin_account(order, start, is_map=not self._iterable)
            loader._tell_epoch(start)
            seed = _prepare(loader, order, start)
            self._draw_seed = _draw_seed(loader, order, start)
        self._begin(loader)
        supply = loader._supply
        self._shared_seed = shared_seed
        self._spec = _worker_spec(loader, _base_seed(loader, self._draw_seed, start.epoch), shared_seed, self._dataset)
        prepare = _pinner(loader)
        if loader.num_workers == 0:
            if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
                world_size, rank = _distributed_settings()
                shard_pipe(self._dataset, world_size, rank)
            bookmark = self._bookmark(loader, order, start, seed)
            self._batches = InlineBatches(
                self._spec, bookmark, start.snapshot, supply.arena(), supply.counters, prepare, loader._account
            )
            loader._ledger.begun(start, order, bookmark)
            self._obey_until_first(loader, order)
            return
        loader.check_worker_number_rationality()
        driver = supply.driver(self._spec, prepare)
        loader._audience.join(driver)
        with loader._seeds.drawing():  # torch draws both again before the first task, and so the
            self._seed_pipes(loader, first=False)  # caller's generators and an eager sampler
            order.prepare(_order_state(start))  # end where they would with torch
        self._batches = WorkerBatches(
            driver,
            lambda driver: self._epoch(loader, driver, order, start, seed),
            persistent=loader.persistent_workers,
        )
        self._obey_until_first(loader, order)

    def _obey_until_first(self, loader: DataLoader[Any], order: Order) -> None:
        this = weakref.ref(self)

        def begin_again(loader: DataLoader[Any]) -> None:
            batches = this()
            if batches is not None:
                batches._begin_again(loader, order)

        loader._obey_until_first(self._batches, order, begin_again, kept=loader.persistent_workers)

    def _begin(self, loader: DataLoader[Any]) -> None:
        self._length_called: int | None = loader._IterableDataset_len_called
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    def _bookmark(self, loader: DataLoader[Any], order: Order, start: Start, seed: int | None) -> Bookmark:
        key = Key(self._draw_seed if seed is None else seed, start.epoch)
        entry = Entry(key, epoch_key(self._draw_seed, start.epoch), _order_state(start))
        self._progress = entry.progress
        self._skipped = order.batches_before(entry.consumed)
        return Bookmark(
            entry,
            order.plan(entry),
            order.unit,
            functools.cache(order.expected),
            self._draw_seed,
            loader.num_workers,
            loader.batch_size or 1,
            stride=order.stride(),
            dataset_epoch=loader._audience.told_epoch,
            keeps_dataset=(loader.persistent_workers or not loader.num_workers) and outlives_epoch(self._dataset),
            keeps_last=not repeats_itself(self._dataset),
        )

    def _seed_pipes(self, loader: DataLoader[Any], *, first: bool) -> int | None:
        """Draw the seed that a data pipe shares over workers and ranks."""
        if not isinstance(self._dataset, IterDataPipe):
            return None
        if first and dist.is_available() and dist.is_initialized():
            self._group = dist.new_group(backend="gloo")
        seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        if self._group is not None:
            dist.broadcast(seed, src=0, group=self._group)
        shared = int(seed.item())
        self._dataset = seed_pipe(self._dataset, shared)
        return shared

    def _epoch(
        self,
        loader: DataLoader[Any],
        driver: Driver,
        order: Order,
        start: Start,
        seed: int | None,
    ) -> None:
        bookmark = self._bookmark(loader, order, start, seed)
        loader._audience.catch_up()
        begin_epoch(
            driver,
            loader._supply.settings,
            self._spec,
            bookmark,
            start.snapshot,
            shared_seed=self._shared_seed,
            account=loader._account,
        )
        loader._ledger.begun(start, order, bookmark)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin another epoch, under torch's name for it; with the same workers, if they are still there."""
        order = loader._next_order()
        if self.closed:
            self.__init__(loader, order)  # type: ignore[misc]  # whoever wraps this iterator keeps it
            return
        self._begin(loader)
        with loader._seeds.drawing():
            self._shared_seed = self._seed_pipes(loader, first=False)
        self._begin_again(loader, order, inside=False)

    def _begin_again(self, loader: DataLoader[Any], order: Order, *, inside: bool = True) -> None:
        """Begin another epoch, or the same again if nothing of it was asked for."""
        start = loader._ledger.begin(order)
        loader._begin_account(order, start, is_map=not self._iterable)
        loader._tell_epoch(start)
        with loader._seeds.drawing():
            seed = _prepare(loader, order, start)
        if start.snapshot is not None and start.snapshot.draw_seed is not None:
            self._draw_seed = start.snapshot.draw_seed
        elif loader._given.seed is not None:
            self._draw_seed = loader._given.seed
        if isinstance(self._batches, WorkerBatches):
            self._batches.restart(lambda driver: self._epoch(loader, driver, order, start, seed), inside=inside)
        else:
            self._spec = replace(self._spec, base_seed=_base_seed(loader, self._draw_seed, start.epoch))
            bookmark = self._bookmark(loader, order, start, seed)
            self._batches.begin(self._spec, bookmark, start.snapshot)
            loader._ledger.begun(start, order, bookmark)
        self._obey_until_first(loader, order)

    @property
    def _num_yielded(self) -> int:
        """Batches of the epoch that were delivered, under torch's name for it; torchdata, too, counts resumed ones."""
        return self._skipped + self._progress.count()

    def __iter__(self) -> TorchBatches:
        return self

    def __len__(self) -> int:
        return len(self._index_sampler) if self._length is None else self._length

    def __next__(self) -> Any:
        if _profiler._is_profiler_enabled:
            with _profiler.record_function(self._profile_name):
                batch = next(self._batches)
        else:
            batch = self._batches.__next__()  # not next(), after which a signal could come
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
        warnings.warn(message, stacklevel=3)

    @property
    def closed(self) -> bool:
        """True when there are no workers any more."""
        return not isinstance(self._batches, WorkerBatches) or self._batches.closed

    def settle(self) -> None:
        """See `ExclusiveBatches.settle`."""
        self._batches.settle()

    @property
    def leaving(self) -> bool:
        """True once somebody has closed the iterator."""
        return self._batches.leaving

    def close(self) -> None:
        """End this iterator and its workers; see `ExclusiveBatches.close`."""
        self._batches.close()

    _shutdown_workers = close
    """The name under which frameworks end torch's iterators."""

    def __getstate__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled: make another iterator from the loader")


def _order_state(start: Start) -> dict[str, Any]:
    return {} if start.snapshot is None else start.snapshot.order


def _prepare(loader: DataLoader[Any], order: Order, start: Start) -> int | None:
    """Let the order get ready as torch's samplers do; returns its seed, None if it has none."""
    for sampler in order.followers():
        sampler.enter(start.epoch)
    order.prepare(_order_state(start))
    if start.snapshot is not None and start.snapshot.seed is not None:
        return start.snapshot.seed
    return order.seed_for(loader._given.seed)


def _draw_seed(loader: DataLoader[Any], order: Order, start: Start) -> int:
    """Return what samples' own random numbers follow from: the loader's seed, or what torch draws for its workers."""
    known = None if start.snapshot is None else start.snapshot.draw_seed
    if known is not None and start.is_settled:
        return known
    if loader._given.seed is not None:
        return loader._given.seed if known is None else known
    if start.before is not None and start.before.draw_seed is not None and loader.persistent_workers:
        return epoch_key(start.before.draw_seed, start.epoch)  # persistent workers would not have been given another
    # Drawn also if it is known: a sampler that draws from the same generator then finds it where it was at first.
    drawn = fresh_seed(loader.generator)
    common = order.common_seed()
    return (drawn if common is None else common) if known is None else known


def fresh_seed(generator: torch.Generator | None) -> int:
    """Draw a seed for workers as torch does."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _base_seed(loader: DataLoader[Any], draw_seed: int, epoch: int) -> int:
    """Return the seed that workers add their number to."""
    # Of a state that was saved with a seed it may be larger than what torch's generators accept.
    return draw_seed % (1 << 63) if loader._given.seed is None else epoch_key(draw_seed, epoch) >> 1


def _worker_spec(loader: DataLoader[Any], base_seed: int, shared_seed: int | None, dataset: Any) -> WorkerSpec:
    init = loader.worker_init_fn
    if loader.num_workers and isinstance(dataset, (IterDataPipe, MapDataPipe)):
        world_size, rank = _distributed_settings()
        init = functools.partial(shard_in_worker, init, world_size, rank)
    return WorkerSpec(
        dataset=dataset,
        kind=DatasetKind.ITERABLE
        if loader._dataset_kind == torch.utils.data._DatasetKind.Iterable
        else DatasetKind.MAP,
        collate=loader.collate_fn,
        framework=TorchFramework(),
        worker_count=loader.num_workers,
        base_seed=base_seed,
        batched=loader._auto_collation,
        drop_last=loader.drop_last,
        init=init,
        shared_seed=shared_seed,
        seeded=loader._given.seed is not None,
        split=loader._stream_split,
        on_error=loader._account.policy if loader._account.guards else None,
    )


def _distributed_settings() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    return 1, 0


def _warn_about_pinning(loader: DataLoader[Any]) -> None:
    if not loader.pin_memory:
        return
    if loader.pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{loader.pin_memory_device}'.",
            stacklevel=6,
        )
    if not _has_accelerator():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=6,
        )


def _has_accelerator() -> bool:
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6 and later
    return bool(torch.cuda.is_available() if accelerator is None else accelerator.is_available())


def _pinner(loader: DataLoader[Any]) -> Callable[[Any], Any] | None:
    """Return what pins a batch that is not pinned yet, None if nothing is to be pinned."""
    if not loader.pin_memory or not _has_accelerator():
        return None
    return torch_pin_memory.pin_memory


__all__ = ["TorchBatches", "fresh_seed"]
