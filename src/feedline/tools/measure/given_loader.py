"""Measures a given loader: its settings, and how it begins an epoch; and what a loader takes for ready samples."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.context import BaseContext
from typing import Any

from feedline.datasets.derived.objects import users_traceback
from feedline.delivery.config import DEFAULT_DEPTH
from feedline.loader.base import LoaderBase, config_of, session_of
from feedline.loader.loader import Loader
from feedline.system.limits import usable_cores
from feedline.system.process import scheduled_s
from feedline.tools.measure.measured import LoaderSetup
from feedline.types import CollateFunction

_STARTS = 2
_CARRIED = 200
_CARRY_S = 0.25
"""How many batches of ready samples a worker makes to measure the time of one, and for how long at most."""
_CARRY_TIMEOUT_S = 30.0
_TIME_MARGIN = 4
"""An epoch is started only if this many times the expected time of a batch remains: a busy machine may need that."""


# Any, throughout: a feedline or torch loader.
def is_loader(value: object) -> bool:
    """True for feedline and torch loaders."""
    torch_data = sys.modules.get("torch.utils.data")
    return isinstance(value, LoaderBase) or (torch_data is not None and isinstance(value, torch_data.DataLoader))


def setup_of(loader: Any) -> LoaderSetup:
    """Return the settings of a loader."""
    batches = getattr(loader, "batch_sampler", None)
    size = loader.batch_size if loader.batch_size is not None else getattr(batches, "batch_size", None)
    is_sequential = _is_sequential(loader)
    if isinstance(loader, LoaderBase):
        settings = config_of(loader)
        return LoaderSetup(
            settings.worker_count, settings.engine_name, settings.depth, size, settings.persistent,
            _method(settings.context), settings.moves, is_sequential,
        )  # fmt: skip
    return LoaderSetup(
        loader.num_workers, "process" if loader.num_workers else "inline", loader.prefetch_factor or DEFAULT_DEPTH,
        size, loader.persistent_workers, _method(loader.multiprocessing_context), is_sequential=is_sequential,
    )  # fmt: skip


def _is_sequential(loader: Any) -> bool:
    """True if a loader takes samples in the order of their indices; False for a sampler of the user's own."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(loader, torch_data.DataLoader):
        return type(loader.sampler) is torch_data.SequentialSampler and type(loader.batch_sampler) in (
            torch_data.BatchSampler,
            type(None),
        )
    return not loader.shuffle and loader.sampler is None and loader.batch_sampler is None


def _method(context: BaseContext | None) -> str:
    method = None if context is None else context.get_start_method(allow_none=True)
    return method or multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def collate_of(loader: object) -> Callable[[object], object] | None:
    """Return the loader's collate function."""
    collate: CollateFunction | None = (
        config_of(loader).collate if isinstance(loader, LoaderBase) else getattr(loader, "collate_fn", None)
    )
    return collate


def begun(setup: LoaderSetup, loader: Any, batch_s: float, until_s: float) -> LoaderSetup:
    """Take the first batch of an epoch; add how long it took to start, or the exception if one is raised.

    An epoch that starts workers begins twice. None begins if a batch would hardly be ready at `until_s`.
    """
    # All workers make their first batch at the same time and share the cores.
    batch_s *= max(1.0, setup.workers / usable_cores())
    is_started_again = setup.workers > 0 and not setup.is_persistent and setup.engine == "process"
    times: list[float] = []
    while (
        len(times) < (_STARTS if is_started_again else 1)
        and time.monotonic() + max([_TIME_MARGIN * batch_s, *times]) < until_s
    ):
        began_s = time.perf_counter()
        try:
            batches = iter(loader)
            next(batches, None)
        except (Exception, SystemExit) as exc:  # raised by user code, feedline or torch
            return replace(setup, failure=users_traceback(exc))
        times.append(time.perf_counter() - began_s)
        del batches  # this ends the workers of torch's loader
        if isinstance(loader, LoaderBase):
            loader.close()
    return replace(setup, start_s=max(0.0, min(times) - batch_s)) if times and is_started_again else setup


@dataclass(frozen=True)
class _Ready:
    """A dataset whose samples are already made."""

    samples: list[object]

    def __len__(self) -> int:
        return 2 * _CARRIED * len(self.samples)

    def __getitem__(self, index: int) -> object:
        return self.samples[index % len(self.samples)]


def carried_s(samples: list[object], collate: CollateFunction) -> float:
    """Return the CPU time that a worker process needs for a batch whose samples are already made.

    Raises any exception of the collate function or of the system.
    """
    ready, size, depth = _Ready(samples), len(samples), DEFAULT_DEPTH + 1  # more than the default: one task at a time
    loader: LoaderBase
    if "torch" in sys.modules:
        from feedline.loader.torch import DataLoader  # the program has imported torch

        loader = DataLoader(
            ready, size, collate_fn=collate, num_workers=1, prefetch_factor=depth, timeout=_CARRY_TIMEOUT_S
        )
    else:
        loader = Loader(ready, size, collate_fn=collate, workers=1, prefetch=depth, timeout_s=_CARRY_TIMEOUT_S)
    with loader:
        batches = iter(loader)
        next(batches)
        (pid,) = session_of(loader).resources.worker_pids
        before_s, until_s, count = scheduled_s(pid)[0], time.monotonic() + _CARRY_S, 0
        for _ in islice(batches, _CARRIED):
            count += 1
            if time.monotonic() > until_s:
                break
        return (scheduled_s(pid)[0] - before_s) / count
