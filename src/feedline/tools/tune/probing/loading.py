"""A loader that was given instead of a dataset: what it was asked for, and what starting an epoch takes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from feedline.datasets.objects import users_traceback
from feedline.delivery.driver.settings import DEFAULT_DEPTH
from feedline.loader.base import LoaderBase, run_of, view_of
from feedline.loader.loader import Loader
from feedline.system.limits import usable_cores
from feedline.system.process import scheduled_s, seen_bytes
from feedline.tools.tune.measured import LoaderFacts

_STARTS = 2
_KEPT_EPOCHS = 5
_PATIENCE = 4
"""Times what a batch should take that there must be time for: on a busy machine it may take that long."""
_CARRIED = 200
_CARRY_S = 0.25
"""Batches, and how long they may take, to see what one needs once its samples are made."""
_CARRY_TIMEOUT_S = 30.0
_MOST_BATCHES = 100
"""Of an epoch that is gone through to see how long it takes."""
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
        settings = view_of(loader).settings()
        return LoaderFacts(
            "feedline", settings.worker_count, settings.engine_name, settings.depth, size, settings.persistent,
            _method(settings.context), settings.moves,
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
        view_of(loader).collate if isinstance(loader, LoaderBase) else getattr(loader, "collate_fn", None)
    )
    return collate


def with_times(facts: LoaderFacts, loader: Any, batch_s: float, until_s: float) -> LoaderFacts:
    """Draw an order and begin epochs, and add how long that takes, or what went wrong."""
    facts = _with_shuffle(facts, loader)
    # All workers make their first batch at the same time, on the cores that there are.
    batch_s = batch_s * max(1.0, facts.workers / usable_cores()) + (facts.shuffle_s or 0.0)
    is_started_again = facts.workers > 0 and not facts.is_persistent and facts.engine == "process"
    epochs: list[_Epoch] = []
    while (
        len(epochs) < (_STARTS if is_started_again else 1)
        and time.monotonic() + max([_PATIENCE * batch_s, *(epoch.first_s for epoch in epochs)]) < until_s
    ):
        try:
            epochs.append(_epoch(loader, facts.workers, until_s if is_started_again else 0.0))
        except (Exception, SystemExit) as exc:  # of the user's, of feedline's or of torch's
            return replace(facts, failure=users_traceback(exc))
    if not epochs or not is_started_again:
        return facts
    first_s, end_s = (min(getattr(epoch, name) for epoch in epochs) for name in ("first_s", "end_s"))
    rest_s = min((epoch.rest_s for epoch in epochs if epoch.rest_s is not None), default=None)
    if all(epoch.is_over for epoch in epochs):  # and so short that most of its batches are made while workers start
        rest_s = _kept_epoch_s(loader, until_s) or rest_s
    return replace(facts, start_s=max(0.0, first_s - batch_s) + end_s, rest_s=rest_s)


@dataclass(frozen=True)
class _Epoch:
    """Times of an epoch, in seconds."""

    first_s: float
    """Until the first batch came."""
    rest_s: float | None
    """From there to the last one; None if that is not known."""
    end_s: float
    """From there to the end."""
    is_over: bool
    """True if it was gone through to its end."""


def _epoch(loader: Any, workers: int, until_s: float) -> _Epoch:
    """Begin an epoch, and go through it until a time; what is left then is estimated."""
    began_s, moments = time.perf_counter(), list[float]()
    iterator = iter(loader)
    next(iterator, None)
    first_s = last_s = time.perf_counter()
    is_over = False
    while not is_over and len(moments) < _MOST_BATCHES + workers and time.monotonic() < until_s:
        is_over = next(iterator, iterator) is iterator
        moments += [] if is_over else [last_s := time.perf_counter()]
    end_s = time.perf_counter() - last_s if is_over else 0.0
    close = getattr(loader, "close", None)
    if callable(close):
        close()
    # Until every worker has come with a batch, some of them are still being started.
    steady, rest_s = moments[workers - 1 :], None
    count = len(moments) if is_over else len(loader) - 1 if hasattr(type(loader.dataset), "__len__") else 0
    if len(steady) > 1:
        rest_s = (steady[-1] - steady[0]) / (len(steady) - 1) * count
    return _Epoch(first_s - began_s, rest_s or None, end_s, is_over)


def _kept_epoch_s(loader: Any, until_s: float) -> float | None:
    """Return how long an epoch takes whose workers are there already; None if that cannot be tried in time."""
    if "persistent_workers" not in vars(loader):
        return None
    twin = copy.copy(loader)
    vars(twin).update(persistent_workers=True, _iterator=None)
    times = []
    try:
        for _ in range(_KEPT_EPOCHS):
            began_s = time.perf_counter()
            for _ in twin:
                if time.monotonic() > until_s:
                    return None
            times.append(time.perf_counter() - began_s)
    except Exception:  # an epoch worked before; what raises now and then is told elsewhere
        return None
    finally:
        vars(twin).update(_iterator=None)  # with which its workers end
    return min(times[1:])


@dataclass(frozen=True)
class _Ready:
    """A dataset whose samples are made already."""

    samples: list[Any]

    def __len__(self) -> int:
        return 2 * _CARRIED * len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % len(self.samples)]


def carried_s(samples: list[Any], collate: Callable[[Any], Any] | None, engine: str) -> float | None:
    """Return how long a loader computes for a batch of samples that are made already; None if it cannot be tried.

    Of worker processes it is the time of the worker. Otherwise it is the time of the calling thread, which makes
    batches itself; what a worker thread takes is about the same.
    """
    is_process = engine == "process"
    # With more than the default prefetch, workers get tasks one by one.
    depth = DEFAULT_DEPTH + 1 if is_process else None
    loader: LoaderBase
    if "torch" in sys.modules:
        from feedline.loader.torch import DataLoader  # the program has imported torch

        loader = DataLoader(
            _Ready(samples), len(samples), collate_fn=collate, num_workers=int(is_process), prefetch_factor=depth,
            timeout=_CARRY_TIMEOUT_S if is_process else 0,
        )  # fmt: skip
    elif is_process:
        loader = Loader(
            _Ready(samples), len(samples), collate=collate, workers=1, prefetch=DEFAULT_DEPTH + 1,
            timeout_s=_CARRY_TIMEOUT_S,
        )  # fmt: skip
    else:
        loader = Loader(_Ready(samples), len(samples), collate=collate)
    try:
        batches = iter(loader)
        next(batches)
        pid = run_of(loader).resources.worker_pids[0] if is_process else threading.get_native_id()
        before_s, until_s, count = scheduled_s(pid)[0], time.monotonic() + _CARRY_S, 0
        for _ in islice(batches, _CARRIED):
            count += 1
            if time.monotonic() > until_s:
                break
        return (scheduled_s(pid)[0] - before_s) / count or None
    except Exception:  # there may be no more processes; what the user's function raises is another finding
        return None
    finally:
        loader.close()


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
