"""What "auto" means: whether a loader uses it, and with which workers such a loader starts.

Before the first epoch of a map-style dataset, a worker process makes a few batches: if handing one over costs as much
as making it, workers gain nothing. Whatever the dataset opens, draws or remembers there does not affect this process.
It needs the fork start method: starting a new interpreter would take longer than learning the same from the first
batches.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.config import AUTO, DEFAULT_DEPTH, Config, is_auto
from feedline.delivery.driver.slots import Slots
from feedline.delivery.driver.tuning import START, Tuning
from feedline.delivery.machine.counters import Counters
from feedline.frameworks.numpy import NumpyFramework
from feedline.insight.worker_model import Load
from feedline.samplers import InfiniteSampler
from feedline.system.timing import Clock
from feedline.types import DatasetKind, Draw, IndexBlock, ResultKind, Task, WorkerIdentity
from feedline.workers import lifetime
from feedline.workers.fetch.awaiting import is_awaited
from feedline.workers.processes.engine import ProcessEngine
from feedline.workers.ray import cluster
from feedline.workers.ray.options import RayOptions
from feedline.workers.runner import Runner

_SOME = 16
"""Assumed batch size if it is not known."""

_LOOK_S = 0.15
"""How long to make batches, at least two."""

_PATIENCE_S = 1.5
"""Timeout of the measurement. A dataset whose batches take longer needs worker processes in any case."""


# object: user input, which other code checks.
def tuning_of(workers: object, prefetch: object) -> Tuning | None:
    """Return the object that finds the number of workers or the depth; None if both are given."""
    tunes_depth = is_auto(prefetch)
    if is_auto(workers):
        depth = prefetch if isinstance(prefetch, int) else DEFAULT_DEPTH
        return Tuning.from_cores(depth=depth, tunes_depth=tunes_depth)
    if not tunes_depth or not isinstance(workers, int) or workers < 1:
        return None
    return Tuning(workers, workers, least=workers, tunes_depth=True)


def begin(tuning: Tuning, settings: Config, spec: WorkerSpec, batch_size: int | None, *, has_indices: bool) -> None:
    """Determine the initial workers of a loader with "auto", before its first iteration.

    Args:
        tuning: receives the result.
        settings: the options of the loader.
        spec: what every worker gets.
        batch_size: samples in a batch; None if it is not known, or samples are not batched.
        has_indices: True for a map-style dataset.
    """
    tuning.is_begun = True
    own_streams = not has_indices and spec.sharding is None
    if tuning.least == tuning.most:
        tuning.tunes_depth = not own_streams  # a stream per worker keeps its initial depth
        return
    if settings.engine == AUTO and settings.engine_name == "process" and multiprocessing.current_process().daemon:
        tuning.fix(
            0, "0 workers: this process is a daemon, such as a multiprocessing worker, and may not start others."
        )
        return
    if own_streams:
        tuning.fix(
            1,
            "1 worker: each worker would read a stream of its own, so their number would change what is delivered. Set "
            "a number, or shard=True.",
        )
        return
    if is_stateful(spec.dataset):
        tuning.fix(START, f"{START} workers: the dataset keeps a state in each of them, so their number is fixed.")
        return
    if settings.engine_name == "ray":
        places = cluster.free_places(settings.ray or RayOptions(), START)
        tuning.most, tuning.cores = max(START, min(tuning.most, places)), float(max(START, places))
        tuning.begin()
    forks = settings.engine_name == "process" and lifetime.start_method(settings.context) == "fork"
    if not has_indices or not forks or is_awaited(spec.dataset):
        tuning.say(f"{tuning.count} workers to begin with.")
        return
    load = probe(spec, batch_size or _SOME, settings.context)
    if load is None:
        tuning.say(f"{tuning.count} workers to begin with: measuring the dataset failed, or took too long.")
        return
    takes = f"a batch takes {load.make_s * 1e3:.2g} ms"
    is_free = settings.engine == AUTO and settings.context is None and settings.worker_bytes is None
    if load.is_cheap and is_free and spec.init is None and not settings.timeout_s:
        tuning.fix(
            0, f"0 workers: {takes}, and handing it over from a worker costs about {2e3 * load.handover_s:.2g} ms."
        )
        return
    computing = load.cpu_s / load.make_s * 100
    tuning.say(f"{tuning.count} processes to begin with: {takes}; {computing:.0f} % of that is computing.")


def probe(spec: WorkerSpec, batch_size: int, context: BaseContext | None) -> Load | None:
    """Measure in a worker process how long a batch of a map-style dataset takes; None if that fails or takes too long.

    Args:
        spec: what every worker gets.
        batch_size: samples in a batch.
        context: the multiprocessing context of workers; None for the default.
    """
    looked_at = WorkerSpec(
        dataset=_Looking(spec, batch_size),
        kind=DatasetKind.MAP,
        collate=np.asarray,
        framework=NumpyFramework(),
        worker_count=1,
        base_seed=spec.base_seed,
        batched=False,
    )
    engine = ProcessEngine(1, None, context)
    try:
        engine.open(looked_at)
        engine.start()
        engine.submit(0, Task(1, 0))
        results = engine.collect(_PATIENCE_S)
        if not results:
            engine.kill(0)
        if not results or results[0].kind is not ResultKind.DONE:
            return None  # the workers of the epoch will report the error
        make_s, cpu_s = Slots(None, looked_at.framework, Counters()).unpack(results[0].payload).tolist()
        return Load(make_s=make_s, step_s=0.0, cpu_s=cpu_s)
    finally:
        engine.close()


@dataclass(frozen=True)
class _Looking:
    """A dataset with one sample: the measurements of another dataset, taken in the worker that loads the sample."""

    spec: WorkerSpec
    batch_size: int

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        make = self._maker()
        make()  # leaves out one-time work
        return np.array(_timed(make, _LOOK_S))

    def _maker(self) -> Callable[[], None]:
        """Return a function that makes one batch after the other."""
        spec = replace(self.spec, on_error=None)
        runner = Runner(spec, WorkerIdentity(0, spec.worker_count, spec.base_seed, spec.dataset, threaded=True))
        indices = _indices(spec.dataset)

        def make() -> None:
            some = list(islice(indices, self.batch_size if spec.batched else 1))
            asked: object = some if spec.batched else some[0]
            if spec.batched and all(type(index) is int for index in some):
                asked = IndexBlock(np.array(some))
            result = runner.attempt(Task(1, asked, draw=Draw(0)), 0, None)
            if result.kind is not ResultKind.DONE:
                raise result.payload

        return make


def _timed(make: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Make batches for `seconds`; return the time per batch, and its CPU time."""
    count, end_s, clock = 0, time.monotonic() + seconds, Clock()
    before = clock.now()
    while not count or time.monotonic() < end_s:
        make()
        count += 1
    own_s, computed_s = clock.since(before)
    return own_s / count, min(own_s, computed_s) / count


def _indices(dataset: Any) -> Iterator[object]:
    """Return an endless iterator over indices from the whole dataset."""
    if isinstance(dataset, Mapping):  # its indices are its keys
        return cycle(islice(dataset, 4096))
    return iter(InfiniteSampler(dataset, seed=0))
