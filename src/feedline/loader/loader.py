"""The loader for NumPy and for everything that takes NumPy arrays: the drop-in's engines, without torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from feedline.abc.deferred import Target
from feedline.abc.sampler import draw_seed
from feedline.abc.scheduler import Scheduler
from feedline.abc.source import Columnar, ShardedSource
from feedline.abc.stateful import is_stateful
from feedline.collate import default
from feedline.delivery.config import DEFAULT_DEPTH
from feedline.errors import BadOption
from feedline.faults.policy import OnError
from feedline.frameworks.numpy import NumpyFramework
from feedline.frameworks.torch_compile import run_untraced
from feedline.loader.arguments import (
    DEFAULT_MESH_TIMEOUT_S,
    check_callable,
    check_count,
    check_flag,
    check_not_batches,
    check_persistent,
    check_sampler,
    check_sized,
    check_timeout,
    check_unordered,
    context_of,
    depth_of,
    fixed_options,
    keeps_workers,
    kind_of,
    named,
    picking,
    tuning_of,
    warn_useless_timeout,
)
from feedline.loader.base import LoaderBase, config_of
from feedline.loader.config import LoaderConfig
from feedline.order.foreign import CutIndices, ForeignOrder
from feedline.order.order import Order, SpanOrder, StreamOrder, order_of
from feedline.order.rank_watch import Sharing
from feedline.order.sharding import steps_of
from feedline.samplers import RandomSampler, SequentialSampler
from feedline.system.optional import require
from feedline.system.ranks import Tail
from feedline.types import CollateFunction, DatasetKind, EngineName, StreamSharding, is_arrays

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from feedline.loader.iteration import NumpyBatches
    from feedline.workers.ray.options import RayOptions


_READ = (
    *("dataset", "_kind", "batch_size", "drop_last", "sampler", "batch_sampler", "collate_fn", "_worker_init"),
    "_own_sampler",
)
"""The attributes of a `Loader` that its config is made from."""


@dataclass(frozen=True, kw_only=True)
class NumpyConfig(LoaderConfig):
    """The config of a `feedline.Loader`."""

    reads = _READ, ()

    given_sampler: Any = field(default=None, compare=False)
    """The user's sampler; `sampler` may be the one that was made for `shuffle`."""

    @classmethod
    def of(cls, loader: Any, options: Mapping[str, Any]) -> NumpyConfig:
        batched = loader.batch_size is not None or loader.batch_sampler is not None
        return cls(
            dataset=loader.dataset,
            is_map=loader._kind is DatasetKind.MAP,
            batched=batched,
            batch_size=loader.batch_size,
            drop_last=bool(loader.drop_last),
            collate=picking(loader.collate_fn or (default if batched else _as_it_is), options, batched=batched),
            init=loader._worker_init,
            given_sampler=loader.sampler,
            sampler=loader.sampler if loader._own_sampler is None else loader._own_sampler,
            batch_sampler=loader.batch_sampler,
            **options,
        )

    @property
    def has_default_collate(self) -> bool:
        collate = self.inner_collate
        return self.batched and (collate is default or getattr(collate, "is_default", False))

    def order_of(self, sharding: StreamSharding | None) -> Order:
        size, drop_last, batch_sampler = self.batch_size, self.drop_last, self.batch_sampler
        if not self.is_map:
            return StreamOrder(size, self.share) if sharding is None else SpanOrder(sharding)
        if batch_sampler is not None:
            order = order_of(batch_sampler, None, drop_last=False)
            return order or ForeignOrder(batch_sampler, share=self.share)
        sampler = self.sampler
        order = order_of(sampler, size, drop_last=drop_last)
        if order is not None:
            return order
        return ForeignOrder(
            sampler,
            None if size is None else lambda _: CutIndices(sampler, size, drop_last=drop_last),
            inner=sampler if size is not None else None,
            batch_size=size,
            drop_last=drop_last,
            share=self.share,
        )

    def sharing(self, sharding: StreamSharding | None) -> Sharing:
        if not self.is_map:
            # Sharded by default, unless the user turned it off.
            is_split = sharding is not None or isinstance(self.dataset, ShardedSource)
            return Sharing(None, "shard", is_intended=True, is_split=is_split)
        if self.batch_sampler is not None:
            return Sharing(self.batch_sampler, "batch_sampler")
        return Sharing(self.sampler, "sampler")

    def samplers(self) -> list[object]:
        return [self.given_sampler, self.batch_sampler]

    def target(self) -> Target | None:
        device, transform = self.device, self.device_transform
        if device is None and transform is None:
            return None
        if device is None:
            raise BadOption("device_transform= needs device=. Without one, transform the batches or the samples.")
        require("jax", extra="jax", purpose=f"device={device!r}")
        from feedline.device.jax_target import JaxTarget

        return JaxTarget(device, transform)

    def fresh_seed(self) -> int:
        return draw_seed()


def _as_it_is(sample: object) -> object:
    return sample


@run_untraced
class Loader(LoaderBase):
    """Iterate over the batches of a dataset: NumPy in, NumPy out. torch is never imported.

    Args:
        dataset: an object with `__getitem__` and `__len__`, or one with only `__iter__`. An array, or a tuple or dict
            of arrays, is a dataset as well; a list is a list of samples.
        batch_size: samples in a batch; None to get single samples.
        shuffle: True for another order in every epoch.
        sampler: yields the indices of an epoch, every time it is iterated.
        batch_sampler: yields lists of indices.
        drop_last: True to drop the last batch if it is not full.
        collate_fn: turns a list of samples into a batch; default: `feedline.collate.default`. Without batches it is
            applied to each sample.
        workers: the number of workers; 0 to make batches in the training loop itself; "auto" for just enough workers
            that the training loop does not wait, determined while it runs; see `tuning`.
        engine: "process", "thread", "inline", "ray" (or `feedline.RayOptions`: actors of a Ray cluster), or "auto":
            inline without workers, otherwise processes; with workers="auto" also threads, if the dataset is as fast
            with them.
        prefetch: batches per worker that are in flight or waiting; by default more while batches are small and quick to
            make. "auto" to prefetch more while workers wait.
        in_order: False to get batches as they finish.
        timeout_s: the longest wait for a batch; 0 for no limit.
        seed: makes batches, augmentation included, depend only on it and the epoch, not on the number of workers; None
            for a different order every time.
        shard: how a dataset with only `__iter__` is split over workers and ranks. True: each sample once; "pad",
            "drop" or "exact" choose what ranks do at the end (True is "pad"). False: every worker iterates over a copy.
            If the dataset splits itself, as a stream of shards does, "pad" and "drop" make all ranks end together.
        persistent: True to keep the workers from epoch to epoch. Default: None, which is True with workers and
            `device`, so that the device does not wait for workers to start; otherwise False.
        start_method: how worker processes start: "fork", "forkserver" or "spawn"; None for Python's default.
        worker_init: called with the worker's number when it starts.
        scheduler: a `feedline.abc.Scheduler` that decides which worker makes which batch.
        memory_budget: bytes that batches in flight may take, or a string such as "4GB"; default: a quarter of the
            memory.
        on_error: how to handle a sample that fails: "raise", "skip" (its batch is smaller), "retry", "replace" (its
            batch keeps its size), or a policy of `feedline.faults` that chooses by the kind of exception; `faults`
            lists what happened.
        restarts: how many dead workers may be replaced in an epoch; default: 32. If given, a worker that takes longer
            than `timeout_s` is replaced as well, instead of raising an error.
        max_memory_per_worker: bytes, or a string such as "4GB": a worker process whose own memory exceeds this is
            replaced.
        device: one of `jax.devices()`, or a JAX sharding, to which arrays are moved ahead of time. None for NumPy
            arrays.
        device_transform: called with each batch on the device, also ahead of time.
        mesh: a torch `DeviceMesh` of all ranks. Ranks with the same place in its data dimensions get the same batches,
            and others their own share: the loader distributes its sampler or its stream. Ranks make such a loader
            together.
        data_dims: the names of the dimensions of the mesh over which the data is split. Default: those whose names
            begin with "dp", "data", "fsdp" or "hsdp".
        rank: the data rank of this process, instead of `mesh`.
        world_size: the number of data ranks, with `rank`.
        check: with `mesh`, compare batches among the ranks that share them, after the first batch, after every `check`
            batches and at the end of the epoch; 0 for never. Default: 100.
        mesh_timeout_s: seconds to wait for other ranks, with `mesh`. Default: 600.
        fields: the fields that this rank needs: names, for batches that are dicts, numbers, for tuples, or a function
            of the batch. Others are dropped in the worker. () for none: batches are empty, and a map-style dataset is
            not read at all. Default: all fields.

    Raises:
        BadOption: an argument, or a combination of arguments, cannot work.

    Example:
        >>> import numpy as np
        >>> from feedline import Loader
        >>> loader = Loader({"x": np.arange(6) * 10, "y": np.arange(6)}, 4)
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 10, 20, 30], [40, 50]]
    """

    _feedline_config: type[NumpyConfig] = NumpyConfig

    @named
    def __init__(
        self,
        dataset: object,
        batch_size: int | None = 1,
        *,
        shuffle: bool = False,
        sampler: Iterable[object] | None = None,
        batch_sampler: Iterable[Iterable[object]] | None = None,
        drop_last: bool = False,
        collate_fn: CollateFunction | None = None,
        workers: int | Literal["auto"] = 0,
        engine: EngineName | RayOptions = "auto",
        prefetch: int | Literal["auto"] = DEFAULT_DEPTH,
        in_order: bool = True,
        timeout_s: float = 0,
        seed: int | None = None,
        persistent: bool | None = None,
        start_method: str | None = None,
        worker_init: Callable[[int], None] | None = None,
        scheduler: Scheduler | None = None,
        memory_budget: int | str | None = None,
        shard: bool | Tail = True,
        on_error: OnError = "raise",
        restarts: int | None = None,
        max_memory_per_worker: int | str | None = None,
        device: object = None,
        device_transform: Callable[[Any], object] | None = None,
        mesh: DeviceMesh | None = None,
        data_dims: str | Sequence[str] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        check: int | None = None,
        mesh_timeout_s: float = DEFAULT_MESH_TIMEOUT_S,
        fields: Sequence[str] | Sequence[int] | Callable[[Any], Any] | None = None,
    ) -> None:
        if isinstance(fields, (tuple, list)) and not fields:
            device = device_transform = None
            if _is_plain_map(dataset):  # nothing to do for workers
                workers, engine, prefetch, timeout_s, persistent, start_method = 0, "auto", DEFAULT_DEPTH, 0, None, None
                max_memory_per_worker = None
        for name, value in (
            ("shuffle", shuffle),
            ("drop_last", drop_last),
            ("in_order", in_order),
            ("persistent", False if persistent is None else persistent),
        ):
            check_flag(name, value)
        check_count("batch_size", batch_size, least=1, optional=True)
        tuning = tuning_of(workers, prefetch)
        count: Any = workers if tuning is None else tuning.count  # Any: its type is checked next
        given_depth = depth_of(prefetch)
        depth = DEFAULT_DEPTH if given_depth is None else given_depth
        check_count("workers", count, least=0, auto=True)
        check_count("prefetch", depth, least=1, auto=True)
        check_callable("collate_fn", collate_fn, "takes a list of samples and returns a batch")
        check_callable("worker_init", worker_init, "takes the number of a worker")
        self.dataset = _with_samples(dataset) if is_arrays(dataset) else dataset
        self.batch_size = None if batch_sampler is not None else batch_size
        self.shuffle = bool(shuffle)
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.drop_last = bool(drop_last)
        self.collate_fn = collate_fn
        self._worker_init = worker_init
        self._kind = kind_of(self.dataset)
        self._check_order(batch_size)
        if self._kind is DatasetKind.ITERABLE and scheduler is not None:
            raise BadOption(
                "scheduler= cannot be used here: the dataset has no __getitem__, so each worker iterates over a copy "
                "of it, and a stream cannot move to another worker. Drop the scheduler."
            )
        options = {
            **fixed_options(
                seed=seed,
                shard=None if self._kind is DatasetKind.MAP else shard,
                engine=engine,
                scheduler=scheduler,
                memory_budget=memory_budget,
                restarts=restarts,
                max_memory_per_worker=max_memory_per_worker,
                device=device,
                device_transform=device_transform,
                mesh=mesh,
                data_dims=data_dims,
                rank=rank,
                world_size=world_size,
                check=check,
                mesh_timeout_s=mesh_timeout_s,
                fields=fields,
            ),
            "worker_count": count,
            "depth": depth,
            "in_order": bool(in_order),
            "timeout_s": check_timeout(timeout_s),
            "persistent": check_persistent(keeps_workers(persistent, count, device), count),
            "context": context_of(start_method, count, engine),
        }
        warn_useless_timeout("timeout_s", timeout_s, "workers", count)
        self._own_sampler = self._make_sampler()
        place = options["data_rank"]
        if place is not None:
            from feedline.loader.placing import common_seed, own_samplers, own_stream

            options["seed"] = common_seed(place, seed, None, self.dataset, sampler, batch_sampler)
            if self._kind is DatasetKind.ITERABLE:
                own_stream(place, self.dataset, shard)
            else:
                given = sampler if self._own_sampler is None else self._own_sampler
                own, self.batch_sampler = own_samplers(place, self.dataset, shuffle, given, batch_sampler)
                self._own_sampler, self.sampler = (None, own) if self._own_sampler is None else (own, sampler)
        self.seed = options["seed"]
        self._set_up(options, on_error, NumpyFramework(), tuning)
        _iterator_class()  # import it now, not while the training loop waits for the first batch
        config_of(self).target()  # raises its errors now rather than later

    def __setattr__(self, name: str, value: object) -> None:
        # A subclass may use the name of another argument for something else.
        if "_feedline_session" in vars(self) and name in (_FIXED if type(self) is Loader else _ORDERING):
            raise BadOption(
                f"{name} cannot be changed: workers, order and states of a {type(self).__name__} follow from it. "
                f"Make a new loader with {name}=. What can be assigned is {', '.join(_READ_AGAIN)}."
            )
        super().__setattr__(name, value)

    def _make_sampler(self) -> RandomSampler | SequentialSampler | None:
        """Return the sampler for `shuffle`; None if the user gave one or there is nothing to sample."""
        if self._kind is DatasetKind.ITERABLE or self.sampler is not None or self.batch_sampler is not None:
            return None
        if self.shuffle and len(self.dataset):
            return RandomSampler(self.dataset)
        return SequentialSampler(self.dataset)

    def _check_order(self, batch_size: int | None) -> None:
        """Reject conflicting arguments that each set the order."""
        order = {"shuffle": self.shuffle or None, "sampler": self.sampler, "batch_sampler": self.batch_sampler}
        given = [name for name, value in order.items() if value is not None]
        if self._kind is DatasetKind.ITERABLE and given:
            check_unordered(self.dataset, given[0])
            raise BadOption(
                f"{given[0]}= was given, but the dataset has no __getitem__: its own iterator decides the order. Drop "
                f"{given[0]}, or give the dataset a __getitem__ and a __len__."
            )
        if self.batch_sampler is not None:
            given += ["drop_last"] * self.drop_last + ["batch_size"] * (batch_size != 1)
            if len(given) > 1:
                other = next(name for name in given if name != "batch_sampler")
                raise BadOption(
                    f"batch_sampler= and {other}= were both given, and a batch sampler already decides which samples "
                    "make a batch. Drop one of them."
                )
        if len(given) > 1:
            raise BadOption("shuffle=True and sampler= were both given, and each decides the order. Drop one of them.")
        if batch_size is None and self.drop_last:
            raise BadOption("drop_last=True needs batches, but batch_size=None means single samples. Drop one of them.")
        check_sampler("sampler", self.sampler)
        check_not_batches(self.sampler, batch_size)
        check_sampler("batch_sampler", self.batch_sampler)
        if self._kind is DatasetKind.MAP and self.sampler is None and self.batch_sampler is None:
            check_sized(self.dataset)

    # Any: an iterator.
    def _iterate(self, order: Order | None) -> Any:
        session = self._feedline_session

        def begin() -> NumpyBatches:
            config, own = session.prepare(self, order)
            iterator: NumpyBatches | None = self._iterator  # a local copy: `close` in another thread clears it
            if iterator is not None and iterator.can_continue(session, config):
                iterator.begin_again(session, config, own)
            else:
                iterator = _iterator_class()(session, config, own, self, target=config.target())
                if config.persistent:
                    self._iterator = iterator
            return iterator

        return session.running.create(begin, session.free)

    def __len__(self) -> int:
        session, config = self._feedline_session, config_of(self)
        length = session.order(config).length() if config.is_map else None
        if length is None and session.stream_sharding is not None and hasattr(type(self.dataset), "__len__"):
            length = steps_of(self.dataset, session.stream_sharding)
        if length is not None:
            return length
        if self.batch_sampler is not None:
            return _length_of(self.batch_sampler)
        count = _length_of(self.dataset if self.sampler is None else self.sampler)
        if self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __repr__(self) -> str:
        config, tuning = config_of(self), self.tuning
        workers = config.worker_count if tuning is None else tuning.count
        parts = [repr(self.dataset) if isinstance(self.dataset, Columnar) else type(self.dataset).__name__]
        options = {**{name: getattr(self, name) for name in _SHOWN}, "seed": config.seed}
        parts += [f"{name}={value!r}" for name, value in options.items() if value is not None and value is not False]
        parts += [f"workers={workers}", f"engine={config.engine_name!r}"]
        return f"Loader({', '.join(parts)})"


_READ_AGAIN = ("batch_size", "drop_last", "collate_fn", "on_error")
_ORDERING = ("dataset", "shuffle", "sampler", "batch_sampler")
_FIXED = inspect.signature(Loader.__init__).parameters.keys() - {*_READ_AGAIN, "self"}
"""Arguments that cannot be assigned later."""

_SHOWN = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn")


def _length_of(source: Any) -> int:
    try:
        return len(source)
    except TypeError as exc:
        raise TypeError(f"The number of batches is not known: {type(source).__name__} has no __len__.") from exc


__all__ = ["Loader"]


def _iterator_class() -> type[NumpyBatches]:
    """Import the iterator only once there is a loader: it loads the engines."""
    from feedline.loader.iteration import NumpyBatches

    return NumpyBatches


def _with_samples(arrays: object) -> object:
    """Return a dataset whose samples are the rows of arrays."""
    from feedline.datasets.formats.arrays import ArrayDataset

    return ArrayDataset(arrays)


def _is_plain_map(dataset: object) -> bool:
    """True for a map-style dataset without a state."""
    return is_arrays(dataset) or (kind_of(dataset) is DatasetKind.MAP and not is_stateful(dataset))
