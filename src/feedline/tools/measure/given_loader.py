"""Measures a given loader: its settings, and how it begins an epoch."""

from __future__ import annotations

import multiprocessing
import sys
import time
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import Any

from feedline.datasets.derived.objects import users_traceback
from feedline.delivery.config import DEFAULT_DEPTH
from feedline.loader.base import LoaderBase, config_of
from feedline.system.limits import usable_cores
from feedline.tools.measure.measured import LoaderSetup
from feedline.types import CollateFunction

_STARTS = 2
_TIME_MARGIN = 4
"""An epoch is started only if this many times the expected time of a batch remains: a busy machine may need that."""


# Any, throughout: a feedline or torch loader.
def is_loader(value: object) -> bool:
    """True for feedline and torch loaders."""
    return isinstance(value, LoaderBase) or _is_torchs(value)


def _is_torchs(value: object) -> bool:
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(value, torch_data.DataLoader)


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
    if _is_torchs(loader):
        data, batches = sys.modules["torch.utils.data"], type(loader.batch_sampler)
        return type(loader.sampler) is data.SequentialSampler and batches in (data.BatchSampler, type(None))
    return not loader.shuffle and loader.sampler is None and loader.batch_sampler is None


def _method(context: BaseContext | None) -> str:
    method = None if context is None else context.get_start_method(allow_none=True)
    return method or multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def collate_of(loader: Any) -> CollateFunction | None:
    """Return the loader's collate function."""
    found: CollateFunction | None = config_of(loader).collate if isinstance(loader, LoaderBase) else loader.collate_fn
    return found


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
