"""The options of a loader, validated once."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import get_args

from feedline.abc.scheduler import Scheduler
from feedline.errors import BadOption
from feedline.schedulers import InOrder, Unordered
from feedline.system.limits import memory_limit
from feedline.types import EngineName
from feedline.types.ranks import local_rank_count
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


@dataclass(frozen=True)
class Settings:
    """How to make batches."""

    worker_count: int = 0
    engine: str | RayOptions = "auto"
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
    seeded: bool = False
    """True if batches follow from a seed, regardless of which worker makes them."""

    engine_name: str = field(init=False, compare=False)
    """The name of the engine, with "auto" resolved."""
    max_workers: int = field(init=False, compare=False)
    """Maximum number of workers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine_name", self._resolved_engine())
        object.__setattr__(self, "max_workers", max(self.worker_count, self.most_workers or 0))
        if not isinstance(self.engine, RayOptions) and self.engine not in ENGINES:
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
        if self.worker_bytes is not None and self.engine_name != "process":
            raise BadOption(
                f"max_memory_per_worker={self.worker_bytes} needs worker processes, but the engine is "
                f"{self.engine_name!r}. Drop max_memory_per_worker=, or use worker processes."
            )
        if self.memory_budget is not None and self.memory_budget < 0:
            raise BadOption(f"memory_budget={self.memory_budget} is negative; give a number of bytes.")

    def _resolved_engine(self) -> str:
        if isinstance(self.engine, RayOptions):
            return "ray"
        if self.engine != "auto":
            return self.engine
        if self.worker_count == 0:
            return "inline"
        process = getattr(self.context, "Process", None)  # MONAI's loader has one that is actually a thread
        return "thread" if isinstance(process, type) and issubclass(process, threading.Thread) else "process"

    @property
    def moves(self) -> bool:
        """True if an idle worker may take over batches of a late one.

        With a seed, a batch does not depend on the worker that makes it. Threads share one dataset, so moving a batch
        to another thread makes nothing less reproducible. Otherwise worker i mod n makes batch i, as in torch's loader.
        """
        return self.seeded or self.engine_name == "thread"

    @property
    def ray(self) -> RayOptions | None:
        """The Ray options, if given."""
        return self.engine if isinstance(self.engine, RayOptions) else None

    @property
    def restart_budget(self) -> int:
        """How many workers may be replaced in an epoch."""
        return DEFAULT_RESTARTS if self.restarts is None else self.restarts

    @property
    def window(self) -> int:
        """Batches in flight: being made or waiting for the training loop."""
        return max(1, self.depth * max(1, self.worker_count))

    @property
    def most_window(self) -> int:
        """Maximum number of batches in flight."""
        return max(self.window, max(self.depth, self.most_depth) * self.max_workers)

    @property
    def deepens(self) -> bool:
        """True if more may be in flight while batches are small and quick to make: only with default options."""
        return self.depth == DEFAULT_DEPTH and self.scheduler is None and self.in_order

    @property
    def is_free(self) -> bool:
        """True if nobody can see which batches a worker has made.

        A dataset may count its samples, or draw from a generator of its own. With a seed, batches do not depend on
        that; out of order, they depend on timing anyway.
        """
        return self.seeded or not self.make_scheduler().in_order

    def make_scheduler(self) -> Scheduler:
        """Return the user's scheduler, or the one that `in_order` stands for."""
        if self.scheduler is not None:
            return self.scheduler
        return InOrder() if self.in_order else Unordered()

    def budget_bytes(self) -> int:
        """Return the maximum memory for slots."""
        if self.memory_budget is not None:
            return self.memory_budget
        return memory_limit() // 4 // local_rank_count()
