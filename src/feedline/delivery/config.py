"""A loader's arguments for one epoch or several, validated once. Nothing below the loader reads them anywhere else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, get_args

from feedline.abc.deferred import hands_on_images
from feedline.abc.memory import Placement
from feedline.abc.scheduler import Scheduler
from feedline.abc.source import EpochAware, repeats_itself
from feedline.abc.stateful import is_stateful, outlives_epoch
from feedline.errors import BadOption
from feedline.schedulers import InOrder, Unordered
from feedline.system.ranks import Share, local_rank_count, share_if_known
from feedline.types import CollateFunction, EngineName

if TYPE_CHECKING:
    from feedline.collate.picked import Fields
    from feedline.mesh.data_rank import DataRank
    from feedline.workers.ray.options import RayOptions

DEFAULT_DEPTH = 2
"""Torch's default. An explicit 2 cannot be distinguished from the default, because frameworks rebuild a loader from its
attributes.
"""

DEFAULT_RESTARTS = 32
"""Enough to find the sample that kills in a batch of thousands (a dozen restarts), and to survive many accidents. More
would keep a job alive that makes no progress. A guess.
"""

ENGINES = get_args(EngineName)

AUTO = "auto"


# object: user input; an array would compare elementwise.
def is_auto(value: object) -> bool:
    """True for "auto"."""
    return isinstance(value, str) and value == AUTO


# Any, throughout: datasets, batches and devices of any class.
@dataclass(frozen=True, kw_only=True)
class Config:
    """The arguments of a loader at one moment, under one set of names.

    Programs and frameworks may reassign a loader's attributes at any time. So every epoch begins with the current
    config: the last one if nothing was reassigned since, otherwise a new one. A config refers neither to its loader nor
    to what the loader keeps.

    Configs are equal if the same workers, with the same memory, can make their batches.
    """

    dataset: Any = field(default=None, compare=False)
    is_map: bool = field(default=True, compare=False)
    """True if the dataset has indices."""
    batched: bool = field(default=True, compare=False)
    """False if samples are delivered one by one."""
    batch_size: int | None = field(default=1, compare=False)
    """Samples in a batch; None for single samples, or if a batch sampler decides."""
    drop_last: bool = field(default=False, compare=False)
    """True to drop the last batch if it is not full."""
    collate: CollateFunction = field(default=list, compare=False)
    """The function that makes a batch of samples; without batching, it gets each sample."""
    init: Callable[[int], None] | None = field(default=None, compare=False)
    """The function called when a worker starts."""
    data_rank: DataRank | None = field(default=None, compare=False)
    """This process among the ranks that share out the data, if it was given; None to look up its rank."""
    fields: Fields | None = field(default=None, compare=False)
    """The fields of a batch that are delivered; None for all."""
    shard: bool | str | None = field(default=None, compare=False)
    """How an iterable dataset is split over workers and ranks."""
    seed: int | None = field(default=None, compare=False)
    device: Any = field(default=None, compare=False)
    """A torch device, or a JAX device or sharding; None if batches stay where they are."""
    device_transform: Callable[[Any], object] | None = field(default=None, compare=False)

    worker_count: int = 0
    """How many workers there are at first; 0 if batches are made in the training loop itself."""
    engine: str | RayOptions = AUTO
    depth: int = DEFAULT_DEPTH
    """Batches per worker that are being made or waiting for the training loop."""
    in_order: bool = True
    timeout_s: float = 0.0
    persistent: bool = False
    context: BaseContext | None = None
    scheduler: Scheduler | None = None
    memory_budget: int | None = None
    """Bytes of slots; None for a quarter of the machine's memory, shared by its ranks."""
    snapshot_every: int = 1
    """A worker's own stream reports its state with every n-th of its batches; 0 for never."""
    pin: bool = False
    restarts: int | None = None
    """Workers that may be replaced in an epoch; None for `DEFAULT_RESTARTS`, with timeouts as errors."""
    most_workers: int | None = None
    """Maximum number of workers, if it changes; None if it does not."""
    most_depth: int = 0
    """Maximum depth; 0 if it does not change."""
    worker_bytes: int | None = None
    """Private memory that a worker may use before it is replaced."""

    def __post_init__(self) -> None:
        if not self.is_for_ray and self.engine not in ENGINES:
            raise BadOption(
                f"engine={self.engine!r} is not one of {', '.join(map(repr, ENGINES))}, nor RayOptions(...)."
            )
        if self.engine == "inline" and self.worker_count > 0:
            raise BadOption(
                f"engine='inline' runs everything in the training loop, but {self.worker_count} workers were "
                "requested. Drop one of the two."
            )
        if self.engine_name in ("thread", "process", "ray") and self.worker_count == 0:
            raise BadOption(f"engine={self.engine!r} needs at least one worker, but the number of workers is 0.")
        if self.scheduler is not None and not isinstance(self.scheduler, Scheduler):
            raise BadOption(
                f"scheduler={self.scheduler!r} is not a feedline.abc.Scheduler: subclass it and override what you need."
            )
        if self.data_rank is not None and len(self.data_rank.peers) > 1 and not self.make_scheduler().in_order:
            raise BadOption(
                "mesh= was given with batches in the order in which they are ready (in_order=False, or a scheduler of "
                "that kind), so ranks that share batches would get them in different orders. Drop one of the two."
            )
        if self.worker_bytes is not None and self.engine_name != "process":
            raise BadOption(
                f"max_memory_per_worker={self.worker_bytes} needs worker processes, but the engine is "
                f"{self.engine_name!r}. Drop max_memory_per_worker=, or use worker processes."
            )

    # -- the workers -------------------------------------------------------------------------------------------------

    @cached_property
    def engine_name(self) -> str:
        """The name of the engine, with "auto" resolved."""
        if not isinstance(self.engine, str):
            return "ray"
        if self.engine != AUTO:
            return self.engine
        if self.worker_count == 0:
            return "inline"
        process = getattr(self.context, "Process", None)  # MONAI's loader has one that is actually a thread
        return "thread" if isinstance(process, type) and issubclass(process, threading.Thread) else "process"

    @property
    def is_for_ray(self) -> bool:
        """True if the engine is given by options for Ray, which only those import who use them."""
        module = sys.modules.get("feedline.workers.ray.options")
        return module is not None and isinstance(self.engine, module.RayOptions)

    @property
    def ray(self) -> RayOptions | None:
        """The Ray options, if given."""
        return self.engine if self.is_for_ray else None  # type: ignore[return-value]  # it has no other options

    @cached_property
    def max_workers(self) -> int:
        """Maximum number of workers."""
        return max(self.worker_count, self.most_workers or 0)

    @cached_property
    def restart_budget(self) -> int:
        """How many workers may be replaced in an epoch."""
        return DEFAULT_RESTARTS if self.restarts is None else self.restarts

    @cached_property
    def moves(self) -> bool:
        """True if an idle worker may take over batches of a late one.

        With a seed, a batch does not depend on the worker that makes it. Threads share one dataset, so moving a batch
        to another thread makes nothing less reproducible. Otherwise worker i mod n makes batch i, as in torch's loader.
        """
        return self.seed is not None or self.engine_name == "thread"

    @cached_property
    def window(self) -> int:
        """Batches in flight with the first number of workers, for which memory is reserved; see `Limits.window`."""
        return max(1, self.depth * max(1, self.worker_count))

    @cached_property
    def most_window(self) -> int:
        """Batches in flight with as many workers as there may ever be."""
        return max(self.window, max(self.depth, self.most_depth) * self.max_workers)

    @cached_property
    def deepens(self) -> bool:
        """True if more may be in flight while batches are small and quick to make: only with default options."""
        return self.depth == DEFAULT_DEPTH and self.scheduler is None and self.in_order

    @cached_property
    def is_free(self) -> bool:
        """True if nobody can see which batches a worker has made.

        A dataset may count its samples, or draw from a generator of its own. With a seed, batches do not depend on
        that; out of order, they depend on timing anyway.
        """
        return self.seed is not None or not self.make_scheduler().in_order

    def make_scheduler(self) -> Scheduler:
        """Return the user's scheduler, or the one that `in_order` stands for."""
        if self.scheduler is not None:
            return self.scheduler
        return InOrder() if self.in_order else Unordered()

    def budget_bytes(self) -> int:
        """Return the maximum memory for slots."""
        if self.memory_budget is not None:
            return self.memory_budget
        from feedline.system.limits import memory_limit

        return memory_limit() // 4 // local_rank_count()

    def share_now(self) -> Share:
        """Return the share of the data that belongs to this process, as given or as it can be found now."""
        return share_if_known() if self.data_rank is None else self.data_rank.share

    # -- the dataset -------------------------------------------------------------------------------------------------

    @cached_property
    def is_epoch_aware(self) -> bool:
        """True if the dataset is told about every epoch."""
        return isinstance(self.dataset, EpochAware)

    @cached_property
    def outlives_epoch(self) -> bool:
        """True if the dataset's state still applies in the next epoch."""
        return outlives_epoch(self.dataset)

    @cached_property
    def repeats_itself(self) -> bool:
        """True if an iterator of the dataset leaves nothing behind."""
        return repeats_itself(self.dataset)

    @property
    def reads_nothing(self) -> bool:
        """True if batches are empty, and their number is known without the samples."""
        return self.fields == () and self.is_map and not is_stateful(self.dataset)

    @property
    def inner_collate(self) -> CollateFunction:
        """The function that gets the samples, if `fields` are dropped before it is called; otherwise `collate`."""
        if not self.fields or callable(self.fields):
            return self.collate
        inner: CollateFunction = getattr(self.collate, "inner", self.collate)
        return inner

    @property
    def has_default_collate(self) -> bool:
        """True if batches are made by the default collate function."""
        return False

    @property
    def device_placement(self) -> Placement:
        """How much of the work on deferred fields the device does."""
        return Placement.COLLATE

    @property
    def placement(self) -> Placement:
        """Where deferred fields, such as images, are finished."""
        deferred = self.has_default_collate and hands_on_images(self.dataset)
        return self.device_placement if deferred else Placement.DATASET


__all__ = ["AUTO", "DEFAULT_DEPTH", "DEFAULT_RESTARTS", "ENGINES", "Config", "is_auto"]
