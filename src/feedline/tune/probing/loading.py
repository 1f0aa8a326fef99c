"""A loader that was given instead of a dataset: what it was asked for, and what starting an epoch takes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from feedline.datasets.objects import users_traceback
from feedline.driver.memory_watch import seen_bytes
from feedline.driver.settings import DEFAULT_DEPTH
from feedline.loader.base import LoaderBase
from feedline.system.limits import usable_cores
from feedline.tune.measured import LoaderFacts

_STARTS = 2
_PATIENCE = 4
"""Times what a batch should take that there must be time for: on a busy machine it may take that long."""
_DRAWN = 500_000
"""Indices whose order is drawn to see how long that takes."""


# Any, throughout: a loader of feedline's or torch's, and datasets of any kind.
def is_loader(value: Any) -> bool:
    """True for loaders of feedline's and torch's."""
    torch_data = sys.modules.get("torch.utils.data")
    return isinstance(value, LoaderBase) or (torch_data is not None and isinstance(value, torch_data.DataLoader))


def facts_of(loader: Any) -> LoaderFacts:
    """Return what a loader was asked to do."""
    batches = getattr(loader, "batch_sampler", None)
    size = loader.batch_size if loader.batch_size is not None else getattr(batches, "batch_size", None)
    if isinstance(loader, LoaderBase):
        settings = loader._settings()
        return LoaderFacts(
            "feedline", settings.worker_count, settings.engine_name, settings.depth, size, settings.persistent,
            _method(settings.context),
        )  # fmt: skip
    depth = loader.prefetch_factor or DEFAULT_DEPTH
    engine = "process" if loader.num_workers else "inline"
    return LoaderFacts(
        "torch", loader.num_workers, engine, depth, size, loader.persistent_workers,
        _method(loader.multiprocessing_context),
    )  # fmt: skip


def _method(context: Any) -> str:
    method = None if context is None else context.get_start_method(allow_none=True)
    return method or multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def collate_of(loader: Any) -> Callable[[Any], Any] | None:
    """Return the function that puts batches together."""
    collate: Callable[[Any], Any] | None = (
        loader._collate if isinstance(loader, LoaderBase) else getattr(loader, "collate_fn", None)
    )
    return collate


def with_times(facts: LoaderFacts, loader: Any, batch_s: float, until_s: float) -> LoaderFacts:
    """Draw an order and begin epochs, and add how long that takes, or what went wrong."""
    facts = _with_shuffle(facts, loader)
    # All workers make their first batch at the same time, on the cores that there are.
    batch_s = batch_s * max(1.0, facts.workers / usable_cores()) + (facts.shuffle_s or 0.0)
    is_started_again = facts.workers > 0 and not facts.is_persistent and facts.engine == "process"
    times: list[float] = []
    while (
        len(times) < (_STARTS if is_started_again else 1)
        and time.monotonic() + max([_PATIENCE * batch_s, *times]) < until_s
    ):
        try:
            times.append(_first_batch_s(loader))
        except (Exception, SystemExit) as exc:  # of the user's, of feedline's or of torch's
            return replace(facts, failure=users_traceback(exc))
    start_s = max(0.0, min(times) - batch_s) if times and is_started_again else None
    return replace(facts, start_s=start_s)


def _first_batch_s(loader: Any) -> float:
    began_s = time.perf_counter()
    iterator = iter(loader)
    next(iterator, None)
    seconds = time.perf_counter() - began_s
    close = getattr(loader, "close", None)
    if callable(close):
        close()
    return seconds


def _with_shuffle(facts: LoaderFacts, loader: Any) -> LoaderFacts:
    """Draw some indices of torch's own random sampler, as the loader does: each of them needs all at once."""
    torch_data = sys.modules.get("torch.utils.data")
    sampler: Any = getattr(loader, "sampler", None)
    if torch_data is None or type(sampler) is not torch_data.RandomSampler or sampler.replacement:
        return facts
    count = min(len(sampler), _DRAWN)
    alike = torch_data.RandomSampler(range(count))
    before_bytes, began_s = seen_bytes(os.getpid()) or 0, time.thread_time()
    if facts.kind == "torch":
        iterator = iter(alike)
    else:
        from feedline.frameworks.torch_samplers import index_blocks  # the program has imported torch

        iterator = index_blocks(alike, {}) or iter(())
    next(iterator, None)
    seconds = time.thread_time() - began_s
    taken = (seen_bytes(os.getpid()) or 0) - before_bytes
    factor = len(sampler) / max(count, 1)
    return replace(facts, shuffle_s=seconds * factor, shuffle_bytes=int(max(taken, 0) * factor))
