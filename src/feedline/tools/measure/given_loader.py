"""Measures a given loader: its settings, and the times to start an epoch, draw an order and carry a batch."""

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
from multiprocessing.context import BaseContext
from typing import Any

from feedline.datasets.derived.objects import users_traceback
from feedline.delivery.config import DEFAULT_DEPTH
from feedline.loader.base import LoaderBase, config_of, session_of
from feedline.loader.loader import Loader
from feedline.system.limits import usable_cores
from feedline.system.process import scheduled_s, seen_bytes
from feedline.tools.measure.measured import LoaderSetup
from feedline.types import CollateFunction

_STARTS = 2
_KEPT_EPOCHS = 5
_TIME_MARGIN = 4
"""An epoch is started only if this many times the expected time of a batch remains: a busy machine may need that."""
_CARRIED = 200
_CARRY_S = 0.25
"""How many batches of ready samples a loader delivers to measure the time of one, and for how long at most."""
_CARRY_TIMEOUT_S = 30.0
_MOST_BATCHES = 100
"""Batches of an epoch, besides one per worker, that are iterated to see how long the epoch takes."""
_DRAWN = 500_000
"""Indices to draw to see how long drawing an order takes."""


# Any, throughout: a feedline or torch loader, and datasets of any kind.
def is_loader(value: object) -> bool:
    """True for feedline and torch loaders."""
    torch_data = sys.modules.get("torch.utils.data")
    return isinstance(value, LoaderBase) or (torch_data is not None and isinstance(value, torch_data.DataLoader))


def setup_of(loader: Any) -> LoaderSetup:
    """Return the settings of a loader."""
    batches = getattr(loader, "batch_sampler", None)
    size = loader.batch_size if loader.batch_size is not None else getattr(batches, "batch_size", None)
    if isinstance(loader, LoaderBase):
        settings = config_of(loader)
        return LoaderSetup(
            "feedline", settings.worker_count, settings.engine_name, settings.depth, size, settings.persistent,
            _method(settings.context), settings.moves,
        )  # fmt: skip
    depth = loader.prefetch_factor or DEFAULT_DEPTH
    engine = "process" if loader.num_workers else "inline"
    return LoaderSetup(
        "torch", loader.num_workers, engine, depth, size, loader.persistent_workers,
        _method(loader.multiprocessing_context),
    )  # fmt: skip


def _method(context: BaseContext | None) -> str:
    method = None if context is None else context.get_start_method(allow_none=True)
    return method or multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def collate_of(loader: object) -> Callable[[object], object] | None:
    """Return the loader's collate function."""
    collate: CollateFunction | None = (
        config_of(loader).collate if isinstance(loader, LoaderBase) else getattr(loader, "collate_fn", None)
    )
    return collate


def with_times(setup: LoaderSetup, loader: object, batch_s: float, until_s: float) -> LoaderSetup:
    """Draw an order and start epochs; add the times, or the exception if one is raised."""
    setup = _with_shuffle(setup, loader)
    # All workers make their first batch at the same time and share the cores.
    batch_s = batch_s * max(1.0, setup.workers / usable_cores()) + (setup.shuffle_s or 0.0)
    is_started_again = setup.workers > 0 and not setup.is_persistent and setup.engine == "process"
    epochs: list[_Epoch] = []
    while (
        len(epochs) < (_STARTS if is_started_again else 1)
        and time.monotonic() + max([_TIME_MARGIN * batch_s, *(epoch.first_s for epoch in epochs)]) < until_s
    ):
        try:
            epochs.append(_epoch(loader, setup.workers, until_s if is_started_again else 0.0))
        except (Exception, SystemExit) as exc:  # raised by user code, feedline or torch
            return replace(setup, failure=users_traceback(exc))
    if not epochs or not is_started_again:
        return setup
    first_s, end_s = (min(getattr(epoch, name) for epoch in epochs) for name in ("first_s", "end_s"))
    rest_s = min((epoch.rest_s for epoch in epochs if epoch.rest_s is not None), default=None)
    if all(epoch.is_over for epoch in epochs):  # then most batches are made while workers start
        rest_s = _kept_epoch_s(loader, until_s) or rest_s
    return replace(setup, start_s=max(0.0, first_s - batch_s) + end_s, rest_s=rest_s)


@dataclass(frozen=True)
class _Epoch:
    """Times of an epoch, in seconds."""

    first_s: float
    """Time to the first batch."""
    rest_s: float | None
    """Time from the first batch to the last; None if unknown."""
    end_s: float
    """Time from the last batch to the end."""
    is_over: bool
    """True if it was iterated to its end."""


def _epoch(loader: Any, workers: int, until_s: float) -> _Epoch:
    """Start an epoch and iterate it until `until_s`; the time of the remaining batches is estimated."""
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
    # Until every worker has delivered a batch, some of them are still starting.
    steady, rest_s = moments[workers - 1 :], None
    count = len(moments) if is_over else len(loader) - 1 if hasattr(type(loader.dataset), "__len__") else 0
    if len(steady) > 1:
        rest_s = (steady[-1] - steady[0]) / (len(steady) - 1) * count
    return _Epoch(first_s - began_s, rest_s or None, end_s, is_over)


def _kept_epoch_s(loader: Any, until_s: float) -> float | None:
    """Return the time of an epoch whose workers are already running; None if that cannot be measured in time."""
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
    except Exception:  # an epoch worked before; other findings report samples that sometimes fail
        return None
    finally:
        vars(twin).update(_iterator=None)  # this ends its workers
    return min(times[1:])


@dataclass(frozen=True)
class _Ready:
    """A dataset whose samples are already made."""

    samples: list[object]

    def __len__(self) -> int:
        return 2 * _CARRIED * len(self.samples)

    def __getitem__(self, index: int) -> object:
        return self.samples[index % len(self.samples)]


def carried_s(samples: list[object], collate: CollateFunction | None, engine: str) -> float | None:
    """Return the CPU time of a batch whose samples are already made; None if that cannot be measured.

    With worker processes, this is the time of the worker. Otherwise it is the time of the calling thread, which makes
    batches itself; a worker thread takes about as long.
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
            _Ready(samples), len(samples), collate_fn=collate, workers=1, prefetch=DEFAULT_DEPTH + 1,
            timeout_s=_CARRY_TIMEOUT_S,
        )  # fmt: skip
    else:
        loader = Loader(_Ready(samples), len(samples), collate_fn=collate)
    try:
        batches = iter(loader)
        next(batches)
        pid = session_of(loader).resources.worker_pids[0] if is_process else threading.get_native_id()
        before_s, until_s, count = scheduled_s(pid)[0], time.monotonic() + _CARRY_S, 0
        for _ in islice(batches, _CARRIED):
            count += 1
            if time.monotonic() > until_s:
                break
        return (scheduled_s(pid)[0] - before_s) / count or None
    except Exception:  # perhaps no process can be started; other findings report exceptions of user code
        return None
    finally:
        loader.close()


def _with_shuffle(setup: LoaderSetup, loader: object) -> LoaderSetup:
    """Add the time and memory that drawing an order takes, estimated from fewer indices.

    Only for torch's own random sampler: it draws all indices before it returns the first.
    """
    torch_data = sys.modules.get("torch.utils.data")
    sampler: Any = getattr(loader, "sampler", None)
    if torch_data is None or type(sampler) is not torch_data.RandomSampler or sampler.replacement:
        return setup
    count = min(len(sampler), _DRAWN)
    alike = torch_data.RandomSampler(range(count))
    before_bytes, began_s = seen_bytes(os.getpid()) or 0, time.thread_time()
    if setup.kind == "torch":
        iterator = iter(alike)
    else:
        from feedline.frameworks.torch_samplers import index_blocks  # the program has imported torch

        iterator = index_blocks(alike, {}) or iter(())
    next(iterator, None)
    seconds = time.thread_time() - began_s
    taken = (seen_bytes(os.getpid()) or 0) - before_bytes
    factor = len(sampler) / max(count, 1)
    return replace(setup, shuffle_s=seconds * factor, shuffle_bytes=int(max(taken, 0) * factor))
