"""Makes and times samples, one after the other and on several threads."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.derived.objects import users_traceback
from feedline.errors import DatasetFailed
from feedline.system.optional import is_tensor
from feedline.system.process import seen_bytes
from feedline.system.timing import Clock, on_threads
from feedline.tools.measure.measured import Samples, Threads, steady_growth
from feedline.tools.measure.noise import Calibration
from feedline.tools.measure.opened_files import OpenedFiles
from feedline.workers.fetch.awaiting import is_awaited
from feedline.workers.fetch.loop import loop_of

_MOST_SAMPLES = 2000
_MOST_FAILURES = 16
"""If this many samples fail before one succeeds, all are assumed to fail."""
_DEPTH = 16
LONG_LIST = 32
"""A list with at least this many items counts as one value, such as a tokenised text. A guess."""
_KEPT_BYTES = 64 << 20
_MEMORY_EVERY = 16
_SLOW = 5
"""Samples that take at least this many times the median are made again."""
_SLOWEST = 8
_REPEATS = 3
"""How often a slow sample is made again, alternating with a median one."""
_THREADED_SAMPLES = 256
_ROUND_S = 0.1
_ROUNDS = 3
"""Rounds over all numbers of threads; fewer if a number would get less than `_ROUND_S` per round."""
_SWITCH_S = 1.0
"""The interpreter's switch interval while threads are timed: a thread keeps the lock until it releases the lock itself.
With the default interval, waiting threads keep waking up to request the lock. On a busy machine they then wait for a
core, which does not count as waiting for the lock."""

# Any, throughout: a dataset, its indices and its samples are any objects.
Ask = Callable[[Any], object]


def asking(dataset: Any) -> Ask:
    """Return the function that makes the sample of an index."""
    if is_awaited(dataset):
        loop = loop_of(dataset)
        return lambda index: loop.run(dataset[index])
    return lambda index: dataset[index]


def some_indices(dataset: object, length: int) -> list[Any]:
    """Return indices from all over a map-style dataset, in random order; the same ones in every call."""
    if isinstance(dataset, Mapping):
        return list(islice(dataset, _MOST_SAMPLES))
    return Random(0).sample(range(length), min(length, _MOST_SAMPLES))


def leaves(value: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each field of a sample or batch, nested fields included."""
    if depth == _DEPTH:  # a sample may even hold itself
        yield name, value
    elif isinstance(value, Mapping):
        for key, held in value.items():
            yield from leaves(held, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, (list, tuple)) and len(value) < LONG_LIST:
        for place, held in enumerate(value):
            yield from leaves(held, f"{name or 'sample'}[{place}]", depth + 1)
    else:
        yield name or "sample", value


def as_array(value: Any) -> NDArray[np.generic] | None:
    """Return an array or CPU tensor as an array, without a copy; None for anything else."""
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else value
    if is_tensor(value) and value.is_cpu and not value.is_sparse:
        try:
            array: NDArray[np.generic] = value.detach().numpy()
            return array
        except (RuntimeError, TypeError):  # a type that NumPy does not have
            return None
    return None


def _lengths(sample: object) -> dict[str, tuple[int, int]]:
    """Return the length and size of each field that may be padded."""
    found = {}
    for name, value in leaves(sample):
        array = as_array(value)
        if array is not None and 1 <= array.ndim <= 2:  # with more axes: images, which are cropped
            found[name] = (array.shape[0], array.size)
        elif isinstance(value, (list, tuple)):
            found[name] = (len(value), len(value))
    return found


@dataclass
class _Run:
    """Measurements collected while samples are made."""

    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    indices: list[object] = field(default_factory=list)
    lengths: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    memory: list[tuple[int, int]] = field(default_factory=list)
    failed: int = 0
    failure: str = ""


class Sampling:
    """Makes samples and keeps the first ones. `ask` raises StopIteration at the end of an iterable dataset."""

    def __init__(self, ask: Ask, indices: Iterator[object], keep: int, opened: OpenedFiles | None = None) -> None:
        self._ask = ask
        self._indices = indices
        self._keep = keep
        self._opened = opened
        self.kept: list[object] = []
        self.made: list[object] = []
        """Indices of the samples that could be made."""
        self._kept_bytes = 0

    def run(self, until_s: float, clock: Clock, *, can_repeat: bool, calibration: Calibration | None = None) -> Samples:
        """Make samples until `until_s` on the clock of `time.monotonic`, or until there are enough.

        Between samples, `calibration` measures how much the machine disturbs them.

        Raises DatasetFailed: no sample could be made, or the dataset is empty.
        """
        run = _Run()
        for index in islice(self._indices, _MOST_SAMPLES):
            if len(run.seconds) + run.failed > 0 and time.monotonic() > until_s:
                break
            if not self._one(index, run, clock):
                break
            if calibration is not None:
                calibration.tick()
            if self._opened is not None and run.seconds:
                self._opened.sample()
        if self._opened is not None:
            self._opened.end()
        self.made = run.indices
        if not run.seconds:
            raise _nothing_came(run)
        repeated = tuple(self._again(run, until_s, clock)) if can_repeat else ()
        lengths, length_field = _varying(run.lengths)
        return Samples(
            seconds=tuple(run.seconds),
            cpu_share=float(np.median(run.shares)),
            sample_bytes=self._kept_bytes / max(len(self.kept), 1),
            repeated=repeated,
            failed=run.failed,
            failure=run.failure,
            lengths=lengths,
            length_field=length_field,
            growth=steady_growth(run.memory),
        )

    def _one(self, index: object, run: _Run, clock: Clock) -> bool:
        """Make a sample; return False at the end of the dataset, or if too many samples failed before one succeeded."""
        process_s = time.process_time()
        before = clock.now()
        try:
            sample = self._ask(index)
        except StopIteration:
            return False
        except (Exception, SystemExit, KeyboardInterrupt) as exc:  # raised by user code: Ctrl-C is not sent here
            run.failed += 1
            run.failure = run.failure or f"sample {index!r:.40}:\n{users_traceback(exc)}"
            return run.failed < _MOST_FAILURES or bool(run.seconds)
        seconds, computed = clock.since(before)
        # While this thread waits, threads of an event loop or of a library may compute for it.
        computed = max(computed, time.process_time() - process_s)
        run.seconds.append(seconds)
        run.shares.append(min(1.0, computed / seconds))
        run.indices.append(index)
        for name, length in _lengths(sample).items():
            run.lengths.setdefault(name, []).append(length)
        if len(self.kept) < self._keep and self._kept_bytes < _KEPT_BYTES:
            self.kept.append(sample)
            self._kept_bytes += size_of(sample)
        elif len(run.seconds) % _MEMORY_EVERY == 0:
            run.memory.append((len(run.seconds), seen_bytes(os.getpid()) or 0))
        return True

    def _again(self, run: _Run, until_s: float, clock: Clock) -> Iterator[tuple[str, float]]:
        """Make the slowest samples again, and yield the index and shortest time of each.

        Alternates with a median sample. If that takes about as long now, the machine is slow, and the slow sample is
        left out.
        """
        usual = float(np.median(run.seconds))
        order = np.argsort(run.seconds)[::-1]
        usual_index = run.indices[order[len(order) // 2]]
        for place in order[:_SLOWEST].tolist():
            first, index = run.seconds[place], run.indices[place]
            if first < _SLOW * usual or time.monotonic() + first > until_s + 1:
                return
            times: dict[bool, list[float]] = {True: [first], False: []}
            try:
                for which, is_slow in [(usual_index, False), (index, True)] * _REPEATS:
                    before = clock.now()
                    self._ask(which)
                    times[is_slow].append(clock.since(before)[0])
            except Exception:  # it worked before; another finding reports samples that fail
                continue
            if min(times[True]) > _SLOW / 2 * float(np.median(times[False])):
                yield f"{index!r:.40}", min(times[True])


def size_of(sample: object) -> int:
    """Return the size of a sample in bytes: exact for arrays, rough for other objects."""
    count = 0
    for _, value in leaves(sample):
        array = as_array(value)
        if array is not None:
            count += array.nbytes
        elif isinstance(value, (str, bytes, bytearray)):
            count += len(value)
        elif isinstance(value, (list, tuple, set, frozenset)):
            count += 8 * len(value)
        else:
            count += 8
    return count


def _nothing_came(run: _Run) -> DatasetFailed:
    if not run.failed:
        return DatasetFailed(
            "The dataset is empty: it has no samples. Check the paths and filters that it is made from.", "empty"
        )
    where, _, traceback = run.failure.partition(":\n")
    return DatasetFailed(
        f"None of the {run.failed} samples that were tried could be made. The first was {where}. Fix the exception "
        "that it raises, then run again.",
        "raises",
        traceback,
    )


def _varying(lengths: Mapping[str, list[tuple[int, int]]]) -> tuple[tuple[int, ...], str]:
    """Return the lengths and name of the largest field whose samples differ in length."""
    differing = [(name, found) for name, found in lengths.items() if len({length for length, _ in found}) > 1]
    name, largest = max(differing, key=lambda pair: sum(size for _, size in pair[1]), default=("sample", []))
    return tuple(length for length, _ in largest), name


def try_threads(ask: Ask, indices: list[object], counts: tuple[int, ...], until_s: float) -> Threads:
    """Make the same samples on each number of threads in turn, in several rounds if time allows; return the medians."""
    rates: dict[int, list[float]] = {}
    awake: dict[int, list[float]] = {}
    helped: list[float] = []
    failure = ""
    some = indices[:_THREADED_SAMPLES]
    rounds = max(1, min(_ROUNDS, int((until_s - time.monotonic()) / (_ROUND_S * len(counts)))))
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        for place, count in enumerate(counts * rounds):
            left_s = (until_s - time.monotonic()) / (rounds * len(counts) - place)
            if left_s <= 0 or failure:
                break
            firsts = [number * len(some) // count for number in range(count)]
            calls = [_maker(ask, itertools.cycle(some[first:] + some[:first])) for first in firsts]
            computed_s = time.process_time()
            made = on_threads(calls, time.monotonic() + left_s)
            failure = "" if made.failure is None else users_traceback(made.failure)
            if made.rate:
                rates.setdefault(count, []).append(made.rate)
                awake.setdefault(count, []).append(made.awake)
            if count == 1:
                helped.append((time.process_time() - computed_s) / max(made.computed_s, 1e-6))
    finally:
        sys.setswitchinterval(switch_s)
    if 1 not in rates:
        return Threads({}, failure=failure)
    usual, awake_usual = ({count: float(np.median(of)) for count, of in found.items()} for found in (rates, awake))
    return Threads(usual, float(np.median(helped)), failure, awake_usual)


def _maker(ask: Ask, indices: Iterator[object]) -> Callable[[], object]:
    return lambda: ask(next(indices))
