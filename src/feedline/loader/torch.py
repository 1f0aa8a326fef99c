"""The drop-in: `torch.utils.data.DataLoader` with feedline behind it.

The class is a subclass of torch's and lets torch check and store the arguments, so errors, warnings and attributes are
torch's own. Iteration is feedline's.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal

import torch
import torch.utils.data
from torch.utils.data import Dataset, Sampler
from typing_extensions import TypeVar  # torch depends on it, too

from feedline.abc.scheduler import Scheduler
from feedline.abc.source import IterableSource
from feedline.abc.stateful import is_stateful
from feedline.errors import BadOption, OptionWarning, warn_user
from feedline.faults.policy import OnError
from feedline.frameworks.torch_compile import run_untraced
from feedline.loader.arguments import (
    DEFAULT_MESH_TIMEOUT_S,
    check_not_batches,
    check_unordered,
    depth_of,
    fixed_options,
    keeps_workers,
    name_options,
    named,
    show,
    tuning_of,
    warn_dubious,
    warn_useless_timeout,
)
from feedline.loader.base import LoaderBase, config_of
from feedline.system.optional import when_imported
from feedline.system.ranks import Tail
from feedline.types import EngineName, MapStyle

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from feedline.loader.torch_batches import TorchBatches
    from feedline.loader.torch_config import TorchConfig
    from feedline.order.order import Order
    from feedline.workers.ray.options import RayOptions

S_co = TypeVar("S_co", covariant=True, default=Any)
"""The type of a sample. Any: a dataset without annotations."""
B_co = TypeVar("B_co", covariant=True, default=Any)
"""The type of a batch. Any: the result of the default collate function has no known type."""
_TORCH_PARAMETERS = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
_OPTIONS = inspect.signature(fixed_options).parameters


_FRAMEWORKS = {
    "accelerate": "accelerate",
    "ray.train": "ray_train",
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "speechbrain": "speechbrain",
}
"""Packages that do not keep loaders yet, and for each the module of `feedline.frameworks` that makes them do it."""

_keeping = threading.Lock()


# What loaders are made of is imported when there is one: a spawned worker imports the program, and with it this class,
# but makes no loader. Test: tests/workers/processes/test_fresh.py
def _keep_in_frameworks() -> None:
    """Make frameworks keep this class when they rebuild loaders; called for every loader, and done for the first."""
    if not _FRAMEWORKS:
        return
    with _keeping:  # two threads may make the first loader
        for package, name in _FRAMEWORKS.items():
            when_imported(package, lambda _, name=name: _keep_in(name))  # type: ignore[misc]
        _FRAMEWORKS.clear()


@functools.cache
def _keep_in(name: str) -> None:
    from feedline.loader.rebuilding import TorchRebuilding

    importlib.import_module(f"feedline.frameworks.{name}").keep_loaders(TorchRebuilding(DataLoader))


@functools.cache
def _batches_class() -> type[TorchBatches[Any]]:
    from feedline.loader.torch_batches import TorchBatches

    return TorchBatches


class _Config:
    """Stands for the class of the loader's config, until there is a loader."""

    def __get__(self, loader: object, kind: type) -> type[TorchConfig]:
        from feedline.loader.torch_config import TorchConfig

        return TorchConfig


def _explain(exc: Exception, loader: object) -> None:
    """Add a note to one of torch's errors about arguments."""
    from feedline.frameworks.torch_notes import explain

    explain(exc, vars(loader))


# Any: a class of loaders, and a loader without its attributes.
def _new(kind: Any) -> Any:
    _keep_in_frameworks()
    return kind.__new__(kind)


@run_untraced
class DataLoader(LoaderBase, torch.utils.data.DataLoader[S_co], Generic[S_co, B_co]):
    """A drop-in for `torch.utils.data.DataLoader`, with the state of torchdata's `StatefulDataLoader`.

    It takes all arguments of torch's loader, in the same order and with the same defaults. A script may notice these
    differences: a worker's exception arrives as itself, with notes that name the sample; a worker that dies is
    replaced, unless `restarts=0`; a late batch keeps no other worker waiting, so samplers may be read further ahead;
    and the indices that a sampler yields are copied.

    For type checkers it is `DataLoader[Sample, Batch]`. `Sample` comes from the dataset, as with torch's. `Batch` is
    the type of `batch` in `for batch in loader`: the return type of `collate_fn` or `device_transform`. Otherwise it is
    `Any`, since the result of the default collate function has no known type.

    Args:
        dataset: a map-style dataset (`__getitem__` and `__len__`; a list will do) or an iterable one, such as a
            subclass of `torch.utils.data.IterableDataset`.
        batch_size: samples in a batch, a positive integer. None for single samples, without a batch dimension.
            Default: 1.
        shuffle: True to draw a new order in every epoch. Map-style datasets only, and not together with `sampler`.
            Default: None, which is False.
        sampler: an iterable of indices, in the order in which you want the samples. Default: None, all in order.
        batch_sampler: an iterable of lists of indices, one for each batch. It replaces `batch_size`, `shuffle`,
            `sampler` and `drop_last`. Default: None.
        num_workers: how many workers make batches ahead; 0 to make them in the training loop. Here also "auto": just
            enough that training does not wait, determined while it runs; see `tuning`. Default: 0.
        collate_fn: a function that turns a list of samples into a batch; without batches it gets each sample. Default:
            None, which stacks tensors, arrays and numbers, as torch's `default_collate` does.
        pin_memory: True to put batches into pinned memory, from which copies to a GPU are faster. Not needed with
            `device`. Default: False.
        drop_last: True to drop the last batch if it is smaller than the others. Default: False.
        timeout: seconds to wait for a worker's batch before raising an error; 0 waits without limit. With `restarts`, a
            worker that takes longer is replaced instead. Default: 0.
        worker_init_fn: called in each worker with its number before it loads anything. Default: None.
        multiprocessing_context: how worker processes start: "fork", "spawn", "forkserver" or a `multiprocessing`
            context. Default: None, Python's default.
        generator: a `torch.Generator` from which orders and worker seeds are drawn. Not together with `seed`. Default:
            None, torch's own.
        prefetch_factor: batches that each worker makes ahead. Here also "auto". Default: None, which is 2 with workers.
        persistent_workers: True to keep workers, and the state of their datasets, from epoch to epoch. Default: None,
            which is True with workers and `device`, so that the device does not wait for workers to start; otherwise
            False.
        pin_memory_device: the device to pin memory for. Recent versions of torch ignore it. Default: "".
        in_order: False to deliver batches as they are ready instead of in order. It works with every version of torch.
            Default: True.
        snapshot_every_n_steps: after how many batches a worker saves the state of its stateful iterable dataset, as in
            torchdata. Default: 1.
        seed: an integer that makes batches, augmentation included, depend only on it and the epoch, not on the number
            of workers. Default: None, for torch's rules.
        shard: True to have the loader split an iterable dataset over workers and ranks, each sample once; "pad", "drop"
            or "exact" choose what ranks do at the end (True is "pad"). Otherwise every worker iterates over its own
            copy, as with torch, unless the dataset is one of feedline's own sources. If the dataset splits itself, as a
            stream of shards does, "pad" and "drop" make all ranks end together. Default: None.
        engine: "process", "thread", "inline", "ray" (or `feedline.RayOptions`: actors of a Ray cluster), or "auto":
            inline without workers, otherwise processes; with num_workers="auto" also threads, if the dataset is as fast
            with them. Default: None, which is "auto".
        scheduler: a `feedline.abc.Scheduler` that decides which worker makes which batch. Default: None, which is
            `feedline.schedulers.InOrder`: worker i mod n makes batch i, and work moves to an idle worker only with
            `seed`, or on threads; with in_order=False, the first worker that is free makes the next batch.
        memory_budget: bytes that batches in flight may take, or a string such as "4GB". Default: None, a quarter of the
            memory.
        on_error: how to handle a sample that fails: "raise", "skip" (its batch is smaller), "retry", "replace" (its
            batch keeps its size), or a policy of `feedline.faults` that chooses by the kind of exception; `faults`
            lists what happened. Default: "raise".
        restarts: how many dead workers may be replaced in an epoch. If given, a worker that takes longer than `timeout`
            is replaced as well, instead of raising an error. Default: None, which is 32.
        max_memory_per_worker: bytes, or a string such as "4GB": a worker process whose own memory exceeds this is
            replaced. Default: None, no limit.
        device: where batches go: "cuda", "cuda:1", "cpu", "mps" or a torch device. Copies to a GPU run ahead of time,
            alongside training, and always use pinned memory. Default: None, which leaves batches where they are.
        device_transform: called with each batch on the device, also ahead of time. Default: None.
        mesh: a torch `DeviceMesh` of all ranks. Ranks with the same place in its data dimensions get the same batches,
            and others their own share: the loader distributes its sampler or its stream. Ranks make such a loader
            together. Default: None.
        data_dims: the names of the dimensions of the mesh over which the data is split. Default: None, those whose
            names begin with "dp", "data", "fsdp" or "hsdp".
        rank: the data rank of this process, instead of `mesh`. Default: None.
        world_size: the number of data ranks, with `rank`. Default: None.
        check: with `mesh`, compare batches among the ranks that share them, after the first batch, after every `check`
            batches and at the end of the epoch; 0 for never. Default: None, which is 100.
        mesh_timeout_s: seconds to wait for other ranks, with `mesh`. Default: 600.
        fields: the fields that this rank needs: names, for batches that are dicts, numbers, for tuples, or a function
            of the batch. Others are dropped in the worker. () for none: batches are empty, and a map-style dataset is
            not read at all. Default: None, for all fields.

    Raises:
        ValueError, TypeError: as torch raises for the same arguments, with a note on what to write instead.
        BadOption: one of feedline's own arguments cannot work.

    Example:
        >>> import torch
        >>> from feedline import DataLoader
        >>> loader = DataLoader(torch.utils.data.TensorDataset(torch.arange(6)), batch_size=4)
        >>> [batch[0].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
    """

    _default_engine = "auto"
    _feedline_config = _Config()
    sampler: Any
    batch_sampler: Any
    seed: int | None
    shard: bool | str | None
    engine: str | RayOptions
    scheduler: Scheduler | None
    memory_budget: int | str | None
    restarts: int | None
    max_memory_per_worker: int | str | None
    device: torch.device | None
    device_transform: Callable[[Any], Any] | None
    mesh: DeviceMesh | None
    data_dims: str | Sequence[str] | None
    rank: int | None
    world_size: int | None
    check: int | None
    mesh_timeout_s: float
    fields: Sequence[str] | Sequence[int] | Callable[[Any], Any] | None
    snapshot_every_n_steps: int | None

    @named
    def __init__(
        self,
        dataset: Dataset[S_co] | MapStyle[S_co] | Iterable[S_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[object] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], B_co] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: object = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | Literal["auto"] | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        seed: int | None = None,
        shard: bool | Tail | None = None,
        engine: EngineName | RayOptions | None = None,
        scheduler: Scheduler | None = None,
        memory_budget: int | str | None = None,
        on_error: OnError = "raise",
        restarts: int | None = None,
        max_memory_per_worker: int | str | None = None,
        device: object = None,
        device_transform: Callable[[Any], B_co] | None = None,
        mesh: DeviceMesh | None = None,
        data_dims: str | Sequence[str] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        check: int | None = None,
        mesh_timeout_s: float = DEFAULT_MESH_TIMEOUT_S,
        fields: Sequence[str] | Sequence[int] | Callable[[Any], Any] | None = None,
    ) -> None:
        from feedline.frameworks.torch import TorchFramework
        from feedline.frameworks.torch_samplers import SeedSource
        from feedline.order.torch_order import adopt_samplers

        _keep_in_frameworks()
        if device is not None:
            from feedline.device.torch_target import device_of

            device = device_of(device)
        given: dict[str, Any] = {
            "seed": seed,
            "shard": shard,
            "engine": engine or self._default_engine,
            "scheduler": scheduler,
            "memory_budget": memory_budget,
            "restarts": restarts,
            "max_memory_per_worker": max_memory_per_worker,
            "snapshot_every_n_steps": snapshot_every_n_steps,
            "device": device,
            "device_transform": device_transform,
            "mesh": mesh,
            "data_dims": data_dims,
            "rank": rank,
            "world_size": world_size,
            "check": check,
            "mesh_timeout_s": mesh_timeout_s,
            "fields": fields,
        }
        fixed = fixed_options(**given)
        if fixed["fields"] == () and _is_map(dataset) and not is_stateful(dataset):  # nothing to do for workers
            num_workers, prefetch_factor, persistent_workers, multiprocessing_context, timeout = 0, None, None, None, 0
            fixed.update(engine="auto", worker_bytes=None)
        if fixed["fields"] == ():
            device = fixed["device"] = fixed["device_transform"] = None
        tuning = tuning_of(num_workers, prefetch_factor)
        count: Any = num_workers if tuning is None else tuning.count  # Any: torch checks its type
        options: dict[str, Any] = {
            "prefetch_factor": depth_of(prefetch_factor),
            "persistent_workers": keeps_workers(persistent_workers, count, device),
            "pin_memory_device": pin_memory_device,
        }
        if "in_order" in _TORCH_PARAMETERS:  # torch 2.6 and later
            options["in_order"] = in_order
        check_not_batches(sampler, batch_size)
        for name, value in {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}.items():
            if value is not None:
                check_unordered(dataset, name)
        if seed is not None and generator is not None:
            raise BadOption(
                f"seed={seed} and generator= were both given: a seed fixes every epoch, a generator draws each one. "
                "Drop one of them."
            )
        own_sampler: Any = None  # Any: feedline's, imported only here
        place = fixed["data_rank"]
        if place is not None:
            from feedline.loader.placing import common_seed, own_samplers, own_stream

            seed = fixed["seed"] = common_seed(place, seed, generator, dataset, sampler, batch_sampler)
            generator = None
            if _is_map(dataset):
                is_own = sampler is None and batch_sampler is None
                sampler, batch_sampler = own_samplers(place, dataset, shuffle, sampler, batch_sampler)
                own_sampler, shuffle = (sampler, None) if is_own else (None, shuffle)
            else:
                own_stream(place, dataset, shard)
        if seed is not None and shuffle and sampler is None and batch_sampler is None and _is_map(dataset):
            # This sampler has no seed of its own: it uses this loader's, even when other code iterates over it.
            from feedline.samplers import RandomSampler

            sampler, shuffle = RandomSampler(dataset), None  # type: ignore[arg-type]  # it has a length, or this raises
            own_sampler = sampler
        super().__init__(
            dataset,  # type: ignore[arg-type]  # torch accepts more than its annotation allows
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            count,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            **options,
        )
        warn_dubious(dataset, shuffle)
        warn_useless_timeout("timeout", timeout, "num_workers", count)
        if self.num_workers > 0 and self.prefetch_factor == 0:
            raise BadOption(
                "prefetch_factor=0 leaves the workers nothing to do. Give at least 1, or None for the default of 2."
            )
        self.in_order = in_order
        show(self, {**given, "seed": fixed["seed"]})
        self._seeds, self._own_sampler = SeedSource(), own_sampler
        self._set_up(fixed, on_error, TorchFramework(), tuning)
        adopt_samplers(self, fixed["seed"])

    # Any: types of any kind.
    def __class_getitem__(cls, types: object) -> Any:
        """Allow `DataLoader[Sample]`, which is `DataLoader[Sample, Any]`, with any version of Python."""
        given = types if isinstance(types, tuple) else (types,)
        missing = len(getattr(cls, "__parameters__", ())) - len(given)
        return super().__class_getitem__((*given, *[Any] * missing))  # type: ignore[misc]  # of Generic

    if TYPE_CHECKING:

        def __iter__(self) -> TorchBatches[B_co]: ...

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            known = inspect.signature(DataLoader.__init__).parameters
            name_options(cls.__init__, [known[name] for name in known if name not in _TORCH_PARAMETERS])

    # Not __setstate__: Accelerate's wrappers would find it in the loader inside them.
    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(max(2, protocol))
        make, arguments, *rest = reduced
        return (_new if make is copyreg.__newobj__ else make, arguments, *rest)  # type: ignore[attr-defined]

    def __copy__(self) -> DataLoader[S_co, B_co]:
        twin = super().__copy__()
        twin._seeds = type(self._seeds)()
        own, batches = self._own_sampler, self.batch_sampler
        is_plain = type(batches) in (type(None), torch.utils.data.BatchSampler)
        if own is not None and self.sampler is own and is_plain:
            own, batches = copy.copy(own), copy.copy(batches)  # `set_epoch` is for one loader
            if batches is not None:
                batches.sampler = own
            vars(twin).update(sampler=own, batch_sampler=batches, _own_sampler=own)
        return twin

    def __setattr__(self, name: str, value: object) -> None:
        # A subclass may use the name for something else.
        if name in _OPTIONS and "_feedline_session" in vars(self) and type(self) in (DataLoader, DataLoader2):
            warn_user(
                f"Assigning to {name} has no effect: feedline's own options are fixed when a loader is made. Make a "
                f"new loader with {name}={value!r:.200}.",
                OptionWarning,
            )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        session, config = self._feedline_session, config_of(self)
        try:
            order = session.order(config)
            if config.is_map:
                length = order.length()
            else:
                from feedline.order.sharding import steps_of

                sharding = session.stream_sharding
                length = None if sharding is None else steps_of(self.dataset, sharding)
            return super().__len__() if length is None else length
        except TypeError as exc:
            _explain(exc, self)
            raise

    # -- iteration ---------------------------------------------------------------------------------------------------

    # Any: an iterator; subclasses may wrap it.
    def _iterate(self, order: Order | None) -> Any:
        """Start an iteration as torch's loader does: subclasses override `_get_iterator`."""
        if not self.persistent_workers or self.num_workers == 0:
            return self._get_iterator() if order is None else self._new_iterator(order)
        iterator = self._iterator  # a local copy: `close` in another thread clears it
        if iterator is None:
            iterator = self._iterator = self._get_iterator() if order is None else self._new_iterator(order)
        elif order is None:
            iterator._reset(self)
        else:
            iterator._reset(self, order=order)
        return iterator

    def _get_iterator(self) -> Any:
        return self._new_iterator(None)

    def _new_iterator(self, order: Order | None) -> TorchBatches[B_co]:
        session = self._feedline_session
        try:
            return session.running.create(
                lambda: _batches_class()(session, *session.prepare(self, order), self), session.free
            )
        except (TypeError, ValueError) as exc:
            _explain(exc, self)
            raise

    @property
    def num_workers(self) -> int:
        """How many workers there are, or would be. Setting it turns "auto" off."""
        if "num_workers" not in vars(self):  # a wrapper of this class may find it elsewhere
            raise AttributeError("num_workers is not known before the loader's constructor has been called")
        number: int = vars(self)["num_workers"]
        session = vars(self).get("_feedline_session")  # torch's constructor reads this before there is one
        tuning = None if session is None else session.tuning
        return number if tuning is None else tuning.count

    @num_workers.setter
    def num_workers(self, number: int) -> None:
        vars(self)["num_workers"] = number
        if "_feedline_session" in vars(self):
            self._feedline_session.tuning = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"num_workers={self.num_workers}, engine={config_of(self).engine_name!r})"
        )


_kind: Any = torch.utils.data.IterableDataset  # Any: mypy wants a concrete class
_kind.register(IterableSource)  # also for datasets created before torch was imported


def _is_map(dataset: object) -> bool:
    return not isinstance(dataset, torch.utils.data.IterableDataset)


class DataLoader2(DataLoader[S_co, B_co]):
    """A `DataLoader` whose workers are threads by default.

    Example:
        >>> import torch
        >>> from feedline import DataLoader2
        >>> loader = DataLoader2(range(6), batch_size=3, num_workers=1)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2], [3, 4, 5]]
    """

    _default_engine = "thread"


__all__ = ["DataLoader", "DataLoader2"]
