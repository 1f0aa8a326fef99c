"""Probes a dataset, part by part, in its own process, and sends the results of each part.

Safe parts come first, and those that may crash or hang the process come last: results sent before that are kept.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import gc
import itertools
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, Literal, TextIO

from feedline.datasets.derived.objects import open_object, users_traceback
from feedline.datasets.framework.kind import kind_of
from feedline.errors import DatasetFailed, FeedlineError
from feedline.loader.base import LoaderBase
from feedline.randomness.global_states import GlobalStates
from feedline.system.failures import words
from feedline.system.timing import Clock
from feedline.tools.measure.batch import collate_for, try_batch, with_carries
from feedline.tools.measure.given_loader import carried_s, collate_of, is_loader, setup_of, with_times
from feedline.tools.measure.measured import LoaderSetup, Lock, Making, Samples, State
from feedline.tools.measure.noise import Calibration
from feedline.tools.measure.opened_files import OpenedFiles
from feedline.tools.measure.our_source import FileReads
from feedline.tools.measure.samples import Ask, Sampling, asking, some_indices, try_threads
from feedline.tools.measure.state import (
    OwnGenerators,
    handles_before,
    handles_of_threads,
    held_in,
    held_share,
    locks_of,
    pickled,
)
from feedline.workers.fetch.awaiting import is_awaited
from feedline.workers.processes.link import STACK_SIGNAL, end_with

_SHARES = {"samples": 0.45, "files": 0.2, "pickle": 0.1, "loader": 0.25, "threads": 0.3}
"""Share of the remaining time that each part may take."""
_CARRY_S = 0.5
"""Time that must remain to measure what the loader needs for a batch whose samples are already made."""
_HELD_S = 0.2
"""How long samples are made again to see how long they hold a lock."""
_MOST_LOCKS = 4
_BATCH = 32
_LARGEST_BATCH = 256
_THREADS = (1, 2)
_WAITING_THREADS = (1, 2, 8)
_LEAST_THREADS_S = 0.4
"""In less time, threads that alternate in holding the interpreter's lock get too few turns."""
_WORTH_THREADS_S = 5e-5
"""A sample that takes less is not worth handing to another thread."""


@dataclass(frozen=True)
class ProbeMessage:
    """A message from the process that probes a dataset."""

    kind: Literal["stage", "part", "failed", "done"]
    name: str = ""
    """The stage, the attribute to set (such as a field of `Measured`), or the reason for a failure."""
    # Any: the value of the attribute, or the text and traceback of a failure.
    value: Any = None


Send = Callable[..., None]
"""Sends a message; takes the fields of `ProbeMessage`."""


def run(body: Callable[[Send], None], parent_pid: int, connection: Connection, stacks_fd: int) -> None:
    """Run `body`, which probes a dataset and sends messages about it; the target of a process."""
    os.setsid()  # so that all processes it starts can be ended with it
    if os.getppid() != parent_pid:
        return  # the parent has already ended
    end_with(parent_pid, -1, started_by_main_thread=True)
    os.dup2(2, 1)  # user code prints to stderr, so that stdout holds only the result
    _warn_once()
    faulthandler.enable(stacks_fd)
    faulthandler.register(STACK_SIGNAL, file=stacks_fd, all_threads=True)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # killed first if the machine runs out of memory
    try:
        body(lambda *fields: connection.send(ProbeMessage(*fields)))
        connection.send(ProbeMessage("done"))
    except FeedlineError as exc:
        failed = exc if isinstance(exc, DatasetFailed) else None
        reason = "wrong" if failed is None else failed.reason
        connection.send(ProbeMessage("failed", reason, (str(exc), "" if failed is None else failed.traceback)))
    except Exception as exc:  # exceptions of user code are caught where it is called
        connection.send(ProbeMessage("failed", "internal", ("".join(traceback.format_exception(exc)), "")))


def _warn_once() -> None:
    """Show equal warnings once: samples are made again and again, and each filter that is set makes Python forget."""
    seen: set[tuple[str, type, str, int]] = set()
    show = warnings.showwarning

    def show_once(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        warning = str(message), category, filename, lineno
        if warning not in seen:
            seen.add(warning)
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_once


def try_parts(source: str | LoaderBase, seconds: float, send: Send) -> None:
    """Probe the named dataset or loader part by part; if a loader object is given, probe its dataset."""
    _Probe(source, seconds, send).run()


class _Probe:
    def __init__(self, source: str | LoaderBase, seconds: float, send: Send) -> None:
        self._source = source
        self._send = send
        self._end_s = time.monotonic() + seconds
        self._clock = Clock()
        self._calibration = Calibration(self._clock)
        self._opened_files = OpenedFiles()

    def _until(self, part: str) -> float:
        """Return when a part must end, on the clock of `time.monotonic`."""
        now_s = time.monotonic()
        return now_s + max(0.2, self._end_s - now_s) * _SHARES[part]

    def run(self) -> None:
        self._send("stage", "import")
        opened, make_s, cpu_share = self._opened()
        loader = opened if is_loader(opened) else None
        dataset = opened if loader is None else loader.dataset
        making = replace(making_of(dataset, make_s), cpu_share=cpu_share)
        self._send("part", "making", making)
        setup = None if loader is None else setup_of(loader)
        self._send("part", "loader", setup)
        if (setup is None or setup.engine == "process") and "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # as in worker processes
        self._send("stage", "samples")
        samples, kept, state, ask = self._samples(dataset, making, setup)
        self._send("stage", "batch")
        batch = None
        if setup is None or setup.batch_size is not None:
            given = None if loader is None else collate_of(loader)
            batch = try_batch(kept, given, self._clock)
            self._send("part", "batch", batch)
            if batch is not None and batch.not_picklable is None and time.monotonic() < self._end_s - _CARRY_S:
                collate = collate_for(kept, given)
                carry = partial(carried_s, engine="process" if setup is None else setup.engine)
                self._send("part", "carry_s", carry(kept, collate))
                batch = with_carries(batch, kept, collate, carry, self._clock)
                self._send("part", "batch", batch)
        # A loader object that was passed in may be running, and the times of its epochs are already known.
        if loader is not None and setup is not None and isinstance(self._source, str):
            self._send("stage", "loader")
            batch_s = samples.mean_s * (setup.batch_size or 1) + (0.0 if batch is None else batch.collate_s)
            self._send("part", "loader", with_times(setup, loader, batch_s, self._until("loader")))
        self._calibration.tick()
        self._send("part", "noise", self._calibration.noise())
        self._send("stage", "threads")
        counts = _WAITING_THREADS if samples.cpu_share < 0.5 else _THREADS
        until_s = max(self._until("threads"), time.monotonic() + _LEAST_THREADS_S)
        is_short = 2 * len(counts) * samples.mean_s < until_s - time.monotonic()
        if making.is_map and is_short and samples.usual_s >= _WORTH_THREADS_S and not state.thread_handles:
            self._send("part", "threads", try_threads(ask, some_indices(dataset, making.length or 0), counts, until_s))
        self._send("part", "noise", self._calibration.noise())

    def _opened(self) -> tuple[Any, float, float]:
        """Return the dataset or loader, the time that user code took to make it, and the computing share of that."""
        if not isinstance(self._source, str):
            return self._source, 0.0, 1.0
        before = self._clock.now()
        with _imports_timed(self._clock) as spent:
            opened = open_object(self._source)
        whole_s, computed_s = self._clock.since(before)
        return opened, max(0.0, whole_s - spent[0]), min(1.0, computed_s / whole_s)

    def _samples(
        self, dataset: object, making: Making, setup: LoaderSetup | None
    ) -> tuple[Samples, list[object], State, Ask]:
        # Before the first sample is made: each worker has its own handle if it is opened on first use.
        pickle = pickled(dataset, self._until("pickle") - time.monotonic(), self._clock)
        state = State(handles=handles_before(dataset), held=held_in(dataset), **pickle)
        self._send("part", "state", state)
        size = _BATCH if setup is None or setup.batch_size is None else min(setup.batch_size, _LARGEST_BATCH)
        if making.is_map:
            ask, indices = asking(dataset), iter(some_indices(dataset, making.length or 0))
        else:
            iterator = _iterated(dataset)
            ask, indices = (lambda _: next(iterator)), itertools.count()
        gc.freeze()  # or one of the samples would pay for a collection of everything that was imported
        own = OwnGenerators(dataset)
        before, has_torch = GlobalStates.now(), "torch" in sys.modules
        sampling = Sampling(ask, indices, size, self._opened_files)
        samples = sampling.run(
            self._until("samples"), self._clock, can_repeat=making.is_map, calibration=self._calibration
        )
        # If torch was imported meanwhile, its state has changed even if nothing was drawn from it.
        drawn = [name for name in GlobalStates.now().differing(before) if name != "torch" or has_torch]
        self._send("part", "samples", samples)
        state = replace(
            state,
            thread_handles=handles_of_threads(dataset),
            global_generators=tuple(drawn),
            own_generators=own.drawn_from(),
        )
        self._send("part", "state", state)
        can_repeat = making.is_map and not making.is_async
        some = sampling.made[:_LARGEST_BATCH]
        reads = FileReads(dataset, ask, self._opened_files, self._clock)
        samples = reads.of(samples, some if can_repeat else [], sampling.kept[0], size, self._until("files"))
        if can_repeat:
            samples = replace(samples, locks=self._locks(dataset, ask, some))
        self._send("part", "samples", samples)
        return samples, sampling.kept, state, ask

    def _locks(self, dataset: object, ask: Ask, indices: list[Any]) -> tuple[Lock, ...]:
        again = itertools.cycle(indices)
        try:
            return tuple(
                Lock(path, held_share(lock, lambda: ask(next(again)), _HELD_S))
                for path, lock in locks_of(dataset)[:_MOST_LOCKS]
            )
        except Exception:  # a sample that could be made before
            return ()


def making_of(dataset: Any, make_s: float) -> Making:
    """Return what is known about a dataset before its first sample is made.

    Raises DatasetFailed: the dataset is empty, or `len()` failed.
    """
    is_map = kind_of(dataset, "dataset").value == "map"
    try:
        length = len(dataset) if hasattr(type(dataset), "__len__") else None
    except (Exception, SystemExit) as exc:
        if is_map:
            text = f"len(dataset) failed: {type(exc).__name__}: {words(exc)}. Fix that, then run again."
            raise DatasetFailed(text, "raises", users_traceback(exc)) from exc
        length = None  # as with torch's iterable datasets of unknown length
    if is_map and not length:
        raise DatasetFailed(
            f"The dataset is empty: len({type(dataset).__name__}) is 0. Check the paths and filters that it is made "
            "from.",
            "empty",
        )
    return Making(type(dataset).__name__, length, make_s, is_map, is_map and is_awaited(dataset))


def _iterated(dataset: Any) -> Iterator[object]:
    try:
        return iter(dataset)
    except (Exception, SystemExit) as exc:
        text = f"iter(dataset) failed: {type(exc).__name__}: {words(exc)}. Fix that, then run again."
        raise DatasetFailed(text, "raises", users_traceback(exc)) from exc


@contextlib.contextmanager
def _imports_timed(clock: Clock) -> Iterator[list[float]]:
    """Yield a list whose only item sums up the time spent in import statements."""
    spent, depth = [0.0], [0]
    original = builtins.__import__

    def timed(*args: Any, **options: Any) -> ModuleType:
        if depth[0]:
            return original(*args, **options)
        depth[0], before = 1, clock.now()
        try:
            return original(*args, **options)
        finally:
            depth[0] = 0
            spent[0] += clock.since(before)[0]

    builtins.__import__ = timed
    try:
        yield spent
    finally:
        builtins.__import__ = original
