"""A short measurement of a dataset before its first epoch: how long a batch takes, and whether threads would suffice.

It runs in a worker process like those of the epoch, so whatever the dataset opens, draws or remembers does not affect
this process. It needs the fork start method: starting a new interpreter would take longer than learning the same from
the first batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.slots import Slots
from feedline.delivery.machine.counters import Counters
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.global_states import GlobalStates
from feedline.samplers import InfiniteSampler
from feedline.system.limits import usable_cores
from feedline.system.ranks import local_rank_count
from feedline.system.timing import Clock, on_threads
from feedline.types import DatasetKind, Draw, IndexBlock, ResultKind, Task, WorkerIdentity
from feedline.workers.handles import used_by_threads
from feedline.workers.processes.engine import ProcessEngine
from feedline.workers.runner import Runner

_LOOK_S = 0.15
"""How long to make batches, at least two; and half as long again to try threads."""

_MOST_THREADS = 8
"""Maximum number of threads to try at the same time. Two are not enough to judge: decoding with Pillow, two threads
made 1.7 times as many batches as one, but on 16 cores no number of threads made more than six times as many.
"""

_PATIENCE_S = 1.5
"""Timeout of the measurement. A dataset whose batches take longer needs worker processes in any case."""

_SCALES = 0.9
"""Share of the ideal gain (n threads make n times as many batches as one) that threads must reach. Processes reach
more, but cost memory.
"""

_WORTH_THREADS_S = 1e-3
"""Shortest batch for which threads are tried: a shorter one holds the GIL most of the time. A guess."""


@dataclass(frozen=True)
class Probe:
    """The measurements."""

    batch_s: float
    """Time per batch, without the first one."""
    cpu_share: float
    """Share of that time spent computing."""
    threads: int
    """How many threads were tried: as many as the cores can serve, at most 8. 0 for short batches, and if threads must
    not share the dataset: it has an open handle, or draws from process-wide generators.
    """
    thread_gain: float
    """How many times as many batches they make as one thread."""

    @property
    def cpu_s(self) -> float:
        """CPU time of a batch."""
        return self.cpu_share * self.batch_s

    @property
    def suits_threads(self) -> bool:
        """True if threads make nearly as many batches as processes: they wait, or release the GIL most of the time."""
        return self.threads > 0 and self.thread_gain >= _SCALES * self.threads


def probe(spec: WorkerSpec, batch_size: int, context: BaseContext | None) -> Probe | None:
    """Measure a map-style dataset in a worker process; None if that fails or takes too long.

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
        figures = Slots(None, looked_at.framework, Counters()).unpack(results[0].payload)
        batch_s, cpu_share, threads, thread_gain = figures.tolist()
        return Probe(batch_s, cpu_share, int(threads), thread_gain)
    finally:
        engine.close()


@dataclass(frozen=True)
class _Looking:
    """A dataset with one sample: the measurements of another dataset, taken in the worker that loads the sample."""

    spec: WorkerSpec
    batch_size: int

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        make = self._maker(0)
        before = GlobalStates.now()
        make()  # leaves out one-time work
        batch_s, cpu_share = _timed(make, _LOOK_S)
        draws = bool(GlobalStates.now().differing(before))
        is_unsafe = draws or bool(used_by_threads(self.spec.dataset))
        threads = 0 if is_unsafe or batch_s < _WORTH_THREADS_S else thread_count(cpu_share)
        gain = self._thread_gain(threads, batch_s) if threads else 0.0
        return np.array([batch_s, cpu_share, threads, gain])

    def _maker(self, number: int) -> Callable[[], None]:
        """Return a function that makes one batch after the other."""
        spec = replace(self.spec, on_error=None)
        identity = WorkerIdentity(number, spec.worker_count, spec.base_seed + number, spec.dataset, threaded=True)
        runner = Runner(spec, identity)
        indices = _indices(spec.dataset, number)

        def make() -> None:
            some = list(islice(indices, self.batch_size if spec.batched else 1))
            asked: object = some if spec.batched else some[0]
            if spec.batched and all(type(index) is int for index in some):
                asked = IndexBlock(np.array(some))
            result = runner.attempt(Task(1, asked, draw=Draw(0)), number, None)
            if result.kind is not ResultKind.DONE:
                raise result.payload

        return make

    def _thread_gain(self, count: int, batch_s: float) -> float:
        """Return how many times as many batches `count` threads make as one thread, which takes `batch_s` per batch.

        0 if one of them fails or takes too long: the dataset does not suit threads.
        """
        makers = [self._maker(number) for number in range(count)]
        now_s = time.monotonic()
        found = on_threads(makers, now_s + _LOOK_S / 2, give_up_s=now_s + 2 * max(_LOOK_S, batch_s))
        return found.rate * batch_s


def thread_count(cpu_share: float) -> int:
    """Return how many threads to try: as many as the cores can serve, if each computes for `cpu_share` of the time."""
    return max(2, min(_MOST_THREADS, int(usable_cores() / local_rank_count() / max(cpu_share, 0.01))))


def _timed(make: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Make batches for `seconds`; return the time per batch, and the share of it spent computing."""
    count, end_s, clock = 0, time.monotonic() + seconds, Clock()
    before = clock.now()
    while not count or time.monotonic() < end_s:
        make()
        count += 1
    own_s, computed_s = clock.since(before)
    return own_s / count, min(1.0, computed_s / own_s)


def _indices(dataset: Any, number: int) -> Iterator[object]:
    """Return an endless iterator over indices from the whole dataset, in another order for each `number`."""
    if isinstance(dataset, Mapping):  # its indices are its keys
        return cycle(islice(dataset, 4096))
    return iter(InfiniteSampler(dataset, seed=number))
