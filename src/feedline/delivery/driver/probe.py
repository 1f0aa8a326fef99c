"""A short look at a dataset before its first epoch: how long a batch takes, and whether threads would do.

It happens in a worker process, as the workers of the epoch will be: this process does not notice, whatever the dataset
opens, draws or remembers. The dataset's own process has to be forked for that; starting one anew takes longer than
finding out from the first batches.
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
from feedline.system.timing import Clock, on_threads
from feedline.types import DatasetKind, Draw, IndexBlock, ResultKind, Task, WorkerIdentity
from feedline.types.ranks import local_rank_count
from feedline.workers.handles import used_by_threads
from feedline.workers.portable import PortableEngine
from feedline.workers.runner import Runner

_LOOK_S = 0.15
"""How long batches are made, at least two; half as long again to see how threads do."""

_MOST_THREADS = 8
"""Threads that are tried at the same time. Two tell little: decoding with Pillow, two made 1.7 times as many batches as
one, and on 16 cores no number of them more than six times as many."""

_PATIENCE_S = 1.5
"""How long the answer is waited for. A dataset whose batches take longer wants workers, whatever the rest is."""

_WORTH_THREADS_S = 1e-3
"""How long a batch takes at least for threads to be tried: of a shorter one the GIL is most. A guess."""


@dataclass(frozen=True)
class Probe:
    """What was found out."""

    batch_s: float
    """How long a batch takes, the first one left out."""
    cpu_share: float
    """How much of that is computing."""
    threads: int
    """How many threads were tried: as many as the cores have room for, at most 8; 0 if none were."""
    thread_gain: float
    """How many times as many batches they make as one thread."""
    is_unsafe: bool
    """True if threads must not share the dataset: it has a handle open, or draws from generators of the process."""

    @property
    def cpu_s(self) -> float:
        """CPU time of a batch."""
        return self.cpu_share * self.batch_s


def probe(spec: WorkerSpec, batch_size: int, context: BaseContext | None) -> Probe | None:
    """Have a worker process look at a map-style dataset; None if it did not succeed, or not in time.

    Args:
        spec: what workers are told.
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
    engine = PortableEngine(1, context)
    try:
        engine.open(looked_at)
        engine.start()
        engine.submit(0, Task(1, 0))
        results = engine.collect(_PATIENCE_S)
        if not results:
            engine.kill(0)
        if not results or results[0].kind is not ResultKind.DONE:
            return None  # the workers of the epoch will say what is wrong
        figures = Slots(None, looked_at.framework, Counters()).unpack(results[0].payload)
        batch_s, cpu_share, threads, thread_gain, is_unsafe = figures.tolist()
        return Probe(batch_s, cpu_share, int(threads), thread_gain, bool(is_unsafe))
    finally:
        engine.close()


@dataclass(frozen=True)
class _Looking:
    """A dataset of one sample: what was found out about another dataset, when it is made in a worker."""

    spec: WorkerSpec
    batch_size: int

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        make = self._maker(0)
        before = GlobalStates.now()
        make()  # what is done once is left out
        batch_s, cpu_share = _timed(make, _LOOK_S)
        draws = bool(GlobalStates.now().differing(before))
        is_unsafe = draws or bool(used_by_threads(self.spec.dataset))
        threads = 0 if is_unsafe or batch_s < _WORTH_THREADS_S else thread_count(cpu_share)
        gain = self._thread_gain(threads, batch_s) if threads else 0.0
        return np.array([batch_s, cpu_share, threads, gain, is_unsafe])

    def _maker(self, number: int) -> Callable[[], None]:
        """Return what makes one batch after the other."""
        spec = replace(self.spec, on_error=None)
        identity = WorkerIdentity(number, spec.worker_count, spec.base_seed + number, spec.dataset, threaded=True)
        runner = Runner(spec, identity)
        indices = _indices(spec.dataset, number)

        def make() -> None:
            some = list(islice(indices, self.batch_size if spec.batched else 1))
            asked: Any = some if spec.batched else some[0]
            if spec.batched and all(type(index) is int for index in some):
                asked = IndexBlock(np.array(some))
            result = runner.attempt(Task(1, asked, draw=Draw(0)), number, None)
            if result.kind is not ResultKind.DONE:
                raise result.payload

        return make

    def _thread_gain(self, count: int, batch_s: float) -> float:
        """Return how many times as many batches so many threads make as one, which needs so long for one.

        0 if one of them fails, or is not done in time: the dataset is not for threads.
        """
        makers = [self._maker(number) for number in range(count)]
        now_s = time.monotonic()
        found = on_threads(makers, now_s + _LOOK_S / 2, give_up_s=now_s + 2 * max(_LOOK_S, batch_s))
        return found.rate * batch_s


def thread_count(cpu_share: float) -> int:
    """Return how many threads to try, if such a share of a batch's time is computing: as many as would be used."""
    return max(2, min(_MOST_THREADS, int(usable_cores() / local_rank_count() / max(cpu_share, 0.01))))


def _timed(make: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Make batches for so long; returns how long one takes, and which share of it is computing."""
    count, end_s, clock = 0, time.monotonic() + seconds, Clock()
    before = clock.now()
    while not count or time.monotonic() < end_s:
        make()
        count += 1
    own_s, computed_s = clock.since(before)
    clock.close()
    return own_s / count, min(1.0, computed_s / own_s)


def _indices(dataset: Any, number: int) -> Iterator[Any]:
    """Return indices from all over a dataset, without end, in another order for each number."""
    if isinstance(dataset, Mapping):  # whose indices are its keys
        return cycle(islice(dataset, 4096))
    return iter(InfiniteSampler(dataset, seed=number))
