"""Probes a dataset, part by part, in a process of its own.

Safe parts come first, and those that may crash or hang the process come last: results sent before that are kept.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from feedline.datasets.derived.objects import open_object
from feedline.loader.base import LoaderBase
from feedline.randomness.global_states import GlobalStates
from feedline.system.timing import Clock
from feedline.tools.measure.batch import try_batch
from feedline.tools.measure.given_loader import begun, collate_of, is_loader, setup_of
from feedline.tools.measure.isolated import Send, watch
from feedline.tools.measure.measured import Making, Measured, Samples, State, Threads, headroom_now
from feedline.tools.measure.noise import Calibration
from feedline.tools.measure.opened_files import OpenedFiles
from feedline.tools.measure.our_source import FileReads
from feedline.tools.measure.samples import Ask, Sampling, asking, iterated, making_of, some_indices
from feedline.tools.measure.state import OwnGenerators, handles_in, held_in, not_picklable
from feedline.tools.measure.threads import lock_in, try_threads

_SHARES = {"samples": 0.35, "files": 0.4, "pickle": 0.1, "loader": 0.5, "threads": 0.6}
"""Share of the remaining time that each part may take."""
_BATCH = 32
_LARGEST_BATCH = 256
_THREADS = (1, 2)
_WAITING_THREADS = (1, 2, 8)
_LEAST_THREADS_S = 0.4
"""In less time, threads that alternate in holding the interpreter's lock get too few turns."""
_KEPT = 2
"""If a thread makes samples again this many times as fast as at first, the dataset has kept them: their rates say
nothing about making samples."""
_WORTH_THREADS_S = 5e-5
"""A sample that takes less is not worth handing to another thread."""


def probe(
    source: str | LoaderBase,
    *,
    seconds: float,
    memory_bytes: int | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Measured:
    """Measure the dataset or loader that `module:object` names, or the dataset of a given loader.

    Ends as soon as the figures are settled, after `seconds` at most. Time, memory, stages (`STAGES`) and exceptions are
    those of `isolated.watch`.
    """
    body = partial(_probe, source, seconds)
    return watch(body, Measured(headroom_now()), seconds=seconds, memory_bytes=memory_bytes, on_stage=on_stage)


def _probe(source: str | LoaderBase, seconds: float, send: Send) -> None:
    _Probe(source, send, time.monotonic() + seconds).run()


class _Probe:
    def __init__(self, source: str | LoaderBase, send: Send, end_s: float) -> None:
        self._source = source
        self._send = send
        self._end_s = end_s
        self._clock = Clock()
        self._calibration = Calibration(self._clock)
        self._opened_files = OpenedFiles()

    def _until(self, part: str) -> float:
        """Return when a part must end, on the clock of `time.monotonic`."""
        now_s = time.monotonic()
        return now_s + max(0.2, self._end_s - now_s) * _SHARES[part]

    def run(self) -> None:
        self._send("stage", "import")
        opened: Any = open_object(self._source) if isinstance(self._source, str) else self._source
        loader = opened if is_loader(opened) else None
        dataset = opened if loader is None else loader.dataset
        making = making_of(dataset)
        setup = None if loader is None else setup_of(loader)
        self._send("part", "making", making)
        self._send("part", "loader", setup)
        is_written = setup is None or setup.engine == "process"
        if is_written and "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # as in worker processes
        self._send("stage", "samples")
        size = _BATCH if setup is None or setup.batch_size is None else min(setup.batch_size, _LARGEST_BATCH)
        samples, kept, ask, has_handles = self._samples(dataset, making, size)
        self._send("stage", "batch")
        batch = None
        if setup is None or setup.batch_size is not None:
            given = None if loader is None else collate_of(loader)
            batch = try_batch(kept, given, self._clock, is_written=is_written)
            self._send("part", "batch", batch)
        # A loader object that was passed in may be running.
        if loader is not None and setup is not None and isinstance(self._source, str):
            self._send("stage", "loader")
            batch_s = samples.mean_s * (setup.batch_size or 1) + (0.0 if batch is None else batch.collate_s)
            self._send("part", "loader", begun(setup, loader, batch_s, self._until("loader")))
        self._calibration.tick()
        self._send("part", "noise", self._calibration.noise())
        self._send("stage", "threads")
        counts = _WAITING_THREADS if samples.cpu_share < 0.5 else _THREADS
        until_s = max(self._until("threads"), time.monotonic() + _LEAST_THREADS_S)
        is_short = 2 * len(counts) * samples.mean_s < until_s - time.monotonic()
        if making.is_map and is_short and samples.usual_s >= _WORTH_THREADS_S and not has_handles:
            indices = some_indices(dataset, making.length or 0)
            threads = try_threads(ask, indices, counts, samples.mean_s, until_s)
            if threads.rates.get(1, 0.0) * samples.usual_s > _KEPT:
                threads = Threads(failure=threads.failure)
            self._send("part", "threads", threads)
        self._send("part", "noise", self._calibration.noise())

    def _samples(self, dataset: object, making: Making, size: int) -> tuple[Samples, list[object], Ask, bool]:
        """Make samples; return their measurements, the first ones, what makes them, and whether handles are open."""
        # Before the first sample is made: each worker has its own handle if it is opened on first use.
        reason, advice = not_picklable(dataset, self._until("pickle"))
        state = State(
            handles=handles_in(dataset), held=held_in(dataset), lock=lock_in(dataset), not_picklable=reason,
            pickle_advice=advice,
        )  # fmt: skip
        self._send("part", "state", state)
        if making.is_map:
            ask, indices = asking(dataset), iter(some_indices(dataset, making.length or 0))
        else:
            iterator = iterated(dataset)
            ask, indices = (lambda _: next(iterator)), itertools.count()
        gc.freeze()  # or one of the samples would pay for a collection of everything that was imported
        own = OwnGenerators(dataset)
        before, has_torch = GlobalStates.now(), "torch" in sys.modules
        sampling = Sampling(ask, indices, self._clock, size, making.is_map, self._opened_files, self._calibration)
        samples = sampling.run(self._until("samples"))
        # If torch was imported meanwhile, its state has changed even if nothing was drawn from it.
        drawn = [name for name in GlobalStates.now().differing(before) if name != "torch" or has_torch]
        self._send("part", "samples", samples)
        state = replace(
            state,
            thread_handles=handles_in(dataset, on_threads=True),
            global_generators=tuple(drawn),
            own_generators=own.drawn_from(),
        )
        self._send("part", "state", state)
        some = sampling.made[:_LARGEST_BATCH] if making.is_map and not making.is_async else []
        reads = FileReads(dataset, ask, self._opened_files, self._clock)
        samples = reads.of(samples, some, sampling.kept[0], size, self._until("files"))
        self._send("part", "samples", samples)
        return samples, sampling.kept, ask, bool(state.thread_handles)
