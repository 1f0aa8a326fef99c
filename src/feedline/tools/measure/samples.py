"""Makes and times samples, one after the other and on several threads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any

import numpy as np

from feedline.datasets.derived.objects import users_traceback
from feedline.datasets.framework.kind import kind_of
from feedline.errors import DatasetFailed
from feedline.system.failures import words
from feedline.system.timing import Clock
from feedline.tools.measure.fields import classes_of, digest_of, lengths_of, size_of, sorted_labels, varying
from feedline.tools.measure.measured import Making, Samples
from feedline.tools.measure.noise import Calibration, usual_s
from feedline.tools.measure.opened_files import OpenedFiles
from feedline.workers.fetch.awaiting import is_awaited
from feedline.workers.fetch.loop import loop_of

_MOST_SAMPLES = 2000
_SETTLED_SAMPLES = 200
_SETTLED = 0.03
"""Enough samples were made when there are this many, and the standard error of their mean time is this share of it."""
_MOST_FAILURES = 16
"""If this many samples fail before one succeeds, all are assumed to fail."""
_KEPT_BYTES = 64 << 20
_QUICK_S = 1e-3
_IN_A_ROW = 64
_CHECKED = 8
"""How many of the first samples are looked at again when later ones were made."""
_SLOW = 5
"""Samples that take at least this many times the median are made again."""
_SLOWEST = 8
_REPEATS = 3
"""How often a slow sample is made again, alternating with a median one."""
# Any, throughout: a dataset, its indices and its samples are any objects.
Ask = Callable[[Any], object]


def making_of(dataset: Any) -> Making:
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
    return Making(type(dataset).__name__, length, is_map, is_map and is_awaited(dataset))


def iterated(dataset: Any) -> Iterator[object]:
    """Return the iterator of an iterable dataset. Raises DatasetFailed: it has none."""
    try:
        return iter(dataset)
    except (Exception, SystemExit) as exc:
        text = f"iter(dataset) failed: {type(exc).__name__}: {words(exc)}. Fix that, then run again."
        raise DatasetFailed(text, "raises", users_traceback(exc)) from exc


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


@dataclass
class _Run:
    """Measurements collected while samples are made."""

    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    indices: list[object] = field(default_factory=list)
    lengths: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    labels: dict[str, dict[int, int]] = field(default_factory=dict)
    digests: list[dict[str, int]] = field(default_factory=list)
    failed: int = 0
    failure: str = ""

    @property
    def is_settled(self) -> bool:
        """True if more samples would hardly change the figures."""
        times = np.array(self.seconds[2:])
        if len(times) < _SETTLED_SAMPLES or len(times) % 50:
            return False
        return bool(times.std() / len(times) ** 0.5 <= _SETTLED * times.mean())


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
            if not self._one(index, run, clock) or run.is_settled:
                break
            if calibration is not None:
                calibration.tick()
            if self._opened is not None and run.seconds:
                self._opened.sample()
        self.made = run.indices
        if not run.seconds:
            raise _nothing_came(run)
        reused = self._reused(run)  # before any sample is made again: it may be another one then
        repeated = tuple(self._again(run, until_s, clock)) if can_repeat else ()
        lengths, length_field = varying(run.lengths)
        return Samples(
            seconds=tuple(run.seconds),
            cpu_share=float(np.median(run.shares)),
            sample_bytes=self._kept_bytes / max(len(self.kept), 1),
            repeated=repeated,
            failed=run.failed,
            failure=run.failure,
            lengths=lengths,
            length_field=length_field,
            in_a_row_s=self._in_a_row_s(run, clock) if can_repeat else None,
            reused=reused,
            sorted_labels=sorted_labels(run.labels) if can_repeat else "",
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
        for name, length in lengths_of(sample).items():
            run.lengths.setdefault(name, []).append(length)
        if isinstance(index, int):
            for name, label in classes_of(sample).items():
                run.labels.setdefault(name, {})[index] = label
        if len(self.kept) < self._keep and self._kept_bytes < _KEPT_BYTES:
            self.kept.append(sample)
            self._kept_bytes += size_of(sample)
            if len(run.digests) < _CHECKED:
                run.digests.append(digest_of(sample))
        return True

    def _in_a_row_s(self, run: _Run, clock: Clock) -> float | None:
        """Return the time of a quick sample, as a worker makes it.

        Between two readings of a clock, and while all samples are kept, it would take longer: caches and memory that
        was just freed are quicker.
        """
        if np.median(run.seconds) > _QUICK_S:
            return None
        some = run.indices[:_IN_A_ROW]
        try:
            return usual_s(lambda: deque(map(self._ask, some), maxlen=0), clock) / len(some)
        except Exception:  # a sample that could be made before
            return None

    def _reused(self, run: _Run) -> str:
        """Return the first field of a kept sample that later samples have changed; empty if none has."""
        for sample, before in zip(self.kept, run.digests, strict=False):
            now = digest_of(sample)
            for name in before:
                if now.get(name) != before[name]:
                    return name
        return ""

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
