"""The drop-in: `torch.utils.data.DataLoader` with feedline behind it.

The class is a subclass of torch's and lets torch check and store the arguments, so that errors, warnings and
attributes are torch's own. What happens on iteration is feedline's.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.utils.data
from torch.utils.data import BatchSampler, Dataset, IterDataPipe, MapDataPipe, Sampler
from torch.utils.data._utils import pin_memory as torch_pin_memory

from feedline.abc.scheduler import Scheduler
from feedline.errors import BadOption
from feedline.frameworks.torch import TorchFramework
from feedline.frameworks.torch_collate import is_default
from feedline.frameworks.torch_samplers import index_blocks
from feedline.loader.batches import CrewBatches, Epoch, InlineBatches, begin_epoch
from feedline.loader.crew import Crew
from feedline.loader.settings import Settings
from feedline.loader.supply import Supply
from feedline.plan.batching import batches_of
from feedline.types import DatasetKind, WorkerSpec

T_co = TypeVar("T_co", covariant=True)

_profiler: Any = torch.autograd.profiler
_TORCH_PARAMETERS = inspect.signature(torch.utils.data.DataLoader.__init__).parameters


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """A drop-in for `torch.utils.data.DataLoader`.

    All of torch's arguments mean what they mean there; `docs/compatibility.md` lists the few deliberate differences.

    Args:
        dataset: a map-style or iterable dataset.
        engine: "process", "thread", "inline", or "auto": inline without workers, otherwise processes.
        scheduler: a `feedline.abc.Scheduler` that decides who works on what.
        memory_budget: bytes that batches under way may take; a quarter of the memory if not given.
        split: how many workers share one batch, each filling some of its rows; for batches so large that the first one
            takes too long, or a window of them too much memory.

    Example:
        >>> import torch
        >>> from feedline import DataLoader
        >>> loader = DataLoader(torch.utils.data.TensorDataset(torch.arange(6)), batch_size=4)
        >>> [batch[0].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
    """

    _default_engine = "auto"
    _iterator: Any
    """The iterator of persistent workers, under torch's name for it."""

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        engine: str | None = None,
        scheduler: Scheduler | None = None,
        memory_budget: int | None = None,
        split: int = 1,
    ) -> None:
        options: dict[str, Any] = {
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "pin_memory_device": pin_memory_device,
        }
        if "in_order" in _TORCH_PARAMETERS:  # torch 2.6 and later
            options["in_order"] = in_order
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            **options,
        )
        if self.num_workers > 0 and self.prefetch_factor == 0:
            raise BadOption(
                "prefetch_factor=0 leaves the workers nothing to do: give at least 1, or None for the default of 2."
            )
        self.in_order = in_order
        self.engine = engine or self._default_engine
        self.scheduler = scheduler
        self.memory_budget = memory_budget
        self.split = split
        if split != 1 and (not is_default(self.collate_fn) or self._dataset_kind != torch.utils.data._DatasetKind.Map):
            raise BadOption(
                f"split={split} needs a map-style dataset and the default collate function: the rows of a batch are "
                "collated apart from each other, and only the default is known to allow that."
            )
        self._supply = Supply(self._settings(), TorchFramework())

    def _settings(self) -> Settings:
        engine = self.engine
        if engine == "thread" and self.num_workers == 0 and engine == self._default_engine:
            engine = "inline"
        return Settings(
            worker_count=self.num_workers,
            engine=engine,
            depth=self.prefetch_factor if self.prefetch_factor is not None else 2,
            in_order=self.in_order,
            timeout_s=self.timeout,
            persistent=self.persistent_workers,
            context=self.multiprocessing_context,
            scheduler=self.scheduler,
            memory_budget=self.memory_budget,
            split=self.split,
            pin=bool(self.pin_memory) and torch.cuda.is_available(),
        )

    # -- iteration ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        settings = self._settings()
        if settings != self._supply.settings:  # an attribute was reassigned, as torch allows for some
            self._supply = Supply(settings, TorchFramework())
        if self.persistent_workers and self._iterator is not None and not self._iterator.closed:
            if not self._supply.is_worn():
                self._iterator._restart(self)
                return self._iterator
            self._iterator.close()
        iterator = self._get_iterator()
        if self.persistent_workers:
            self._iterator = iterator
        return iterator

    def _get_iterator(self) -> Any:
        return TorchBatches(self)

    def stats(self) -> dict[str, Any]:
        """Return counters: batches, waiting time, fallbacks, memory."""
        return self._supply.stats()

    def close(self) -> None:
        """End persistent workers and give the memory back. The loader can be iterated again afterwards."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None
        self._supply.close()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}, engine={self._supply.settings.engine_name!r})"
        )


class DataLoader2(DataLoader[T_co]):
    """The same loader with threads as workers unless told otherwise.

    Example:
        >>> import torch
        >>> from feedline import DataLoader2
        >>> loader = DataLoader2(range(6), batch_size=3, num_workers=1)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2], [3, 4, 5]]
    """

    _default_engine = "thread"


class TorchBatches(Iterator[Any]):
    """What `iter(loader)` returns: torch's bookkeeping around feedline's batches."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._dataset = loader.dataset
        self._index_sampler = loader._index_sampler
        self._iterable = loader._dataset_kind == torch.utils.data._DatasetKind.Iterable
        self._num_workers = loader.num_workers
        self._group: Any = None
        self._batches: InlineBatches | CrewBatches
        _warn_about_pinning(loader)
        shared_seed = self._seed_pipes(loader, first=True)
        plan = self._plan(loader)
        base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
        self._begin(loader)
        supply = loader._supply
        spec = _worker_spec(loader, base_seed, shared_seed, self._dataset)
        prepare = _pinner(loader)
        if loader.num_workers == 0:
            if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
                world_size, rank = _distributed_settings()
                torch.utils.data.graph_settings.apply_sharding(self._dataset, world_size, rank)
            self._batches = InlineBatches(spec, plan, supply.arena(), supply.counters, prepare)
            return
        loader.check_worker_number_rationality()
        crew = supply.crew(spec, prepare)
        self._seed_pipes(loader, first=False)  # torch draws both again before the first task, and so the
        plan = self._plan(loader)  # caller's generators and an eager sampler end where they would with torch
        self._batches = CrewBatches(
            crew, lambda crew: self._epoch(loader, crew, plan, shared_seed), persistent=loader.persistent_workers
        )

    def _begin(self, loader: DataLoader[Any]) -> None:
        self._num_yielded = 0
        self._length_called: int | None = loader._IterableDataset_len_called
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

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
        generator = torch.Generator()
        generator.manual_seed(shared)
        self._dataset = torch.utils.data.graph_settings.apply_random_seed(self._dataset, generator)
        return shared

    def _plan(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Return what each batch consists of. Like torch, ask the sampler for its iterator now, for indices later."""
        if self._iterable:
            return iter(functools.partial(int, loader.batch_size or 0), -1)
        batch_sampler = loader.batch_sampler
        if type(batch_sampler) is BatchSampler:
            blocks = index_blocks(batch_sampler.sampler)
            if blocks is not None:
                return batches_of(blocks, batch_sampler.batch_size, drop_last=batch_sampler.drop_last)
        return iter(self._index_sampler)

    def _epoch(self, loader: DataLoader[Any], crew: Crew, plan: Iterator[Any], shared_seed: int | None) -> Epoch:
        kind = DatasetKind.ITERABLE if self._iterable else DatasetKind.MAP
        return begin_epoch(crew, loader._supply.settings, kind, plan, shared_seed)

    def _restart(self, loader: DataLoader[Any]) -> None:
        assert isinstance(self._batches, CrewBatches)
        self._begin(loader)
        shared_seed = self._seed_pipes(loader, first=False)
        plan = self._plan(loader)
        self._batches.restart(lambda crew: self._epoch(loader, crew, plan, shared_seed))

    def __iter__(self) -> TorchBatches:
        return self

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __next__(self) -> Any:
        if _profiler._is_profiler_enabled:
            with _profiler.record_function(self._profile_name):
                batch = next(self._batches)
        else:
            batch = next(self._batches)
        if self._iterable and self._length_called is not None:
            self._check_length()
        return batch

    def _check_length(self) -> None:
        self._num_yielded += 1
        if self._length_called is None or self._num_yielded <= self._length_called:
            return
        message = (
            f"Length of IterableDataset {self._dataset} was reported to be {self._length_called}"
            f"(when accessing len(dataloader)), but {self._num_yielded} samples have been fetched. "
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
        return not isinstance(self._batches, CrewBatches) or self._batches.closed

    def close(self) -> None:
        """End the workers of this iterator."""
        self._batches.close()

    _shutdown_workers = close
    """The name under which frameworks end torch's iterators."""

    def __getstate__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled: make another iterator from the loader")


def _worker_spec(loader: DataLoader[Any], base_seed: int, shared_seed: int | None, dataset: Any) -> WorkerSpec:
    init = loader.worker_init_fn
    if loader.num_workers and isinstance(dataset, (IterDataPipe, MapDataPipe)):
        world_size, rank = _distributed_settings()
        init = functools.partial(torch.utils.data.dataloader._sharding_worker_init_fn, init, world_size, rank)
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
            stacklevel=4,
        )
    if not _has_accelerator():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=4,
        )


def _has_accelerator() -> bool:
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6 and later
    return bool(torch.cuda.is_available() if accelerator is None else accelerator.is_available())


def _pinner(loader: DataLoader[Any]) -> Callable[[Any], Any] | None:
    """Return what pins a batch that is not pinned yet, None if nothing is to be pinned."""
    if not loader.pin_memory or not _has_accelerator():
        return None
    return torch_pin_memory.pin_memory


__all__ = ["DataLoader", "DataLoader2", "TorchBatches"]
