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
    is_map, name = kind_of(dataset, "dataset").value == "map", type(dataset).__name__
    try:
        length = len(dataset) if hasattr(type(dataset), "__len__") else None
    except (Exception, SystemExit) as exc:
        if is_map:
            raise _failed("len(dataset)", exc) from exc
        length = None  # as with torch's iterable datasets of unknown length
    if is_map and not length:
        text = f"The dataset is empty: len({name}) is 0. Check the paths and filters that it is made from."
        raise DatasetFailed(text, "empty")
    return Making(name, length, is_map, is_map and is_awaited(dataset))


def iterated(dataset: Any) -> Iterator[object]:
    """Return the iterator of an iterable dataset. Raises DatasetFailed: it has none."""
    try:
        return iter(dataset)
    except (Exception, SystemExit) as exc:
        raise _failed("iter(dataset)", exc) from exc


def _failed(call: str, exc: BaseException) -> DatasetFailed:
    text = f"{call} failed: {type(exc).__name__}: {words(exc)}. Fix that, then run again."
    return DatasetFailed(text, "raises", users_traceback(exc))


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
class Sampling:
    """Makes samples and measures them; keeps the first ones."""

    ask: Ask
    """Raises StopIteration at the end of an iterable dataset."""
    indices: Iterator[object]
    clock: Clock
    keep: int
    """How many samples to keep."""
    can_repeat: bool
    """True if a sample can be made again."""
    opened: OpenedFiles | None = None
    calibration: Calibration | None = None
    """Measures between samples how much the machine disturbs them."""
    kept: list[object] = field(default_factory=list)
    kept_bytes: int = 0
    made: list[object] = field(default_factory=list)
    """Indices of the samples that could be made; `seconds` and `shares` have their times and shares of CPU time."""
    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    lengths: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    labels: dict[str, dict[int, int]] = field(default_factory=dict)
    digests: list[dict[str, int]] = field(default_factory=list)
    failed: int = 0
    failure: str = ""

    def run(self, until_s: float) -> Samples:
        """Make samples until `until_s` on the clock of `time.monotonic`, or until there are enough.

        Raises DatasetFailed: no sample could be made, or the dataset is empty.
        """
        for index in islice(self.indices, _MOST_SAMPLES):
            if len(self.seconds) + self.failed > 0 and time.monotonic() > until_s:
                break
            if not self._one(index) or self._is_settled:
                break
            if self.calibration is not None:
                self.calibration.tick()
            if self.opened is not None and self.seconds:
                self.opened.sample()
        if not self.seconds:
            raise self._nothing_came()
        reused = self._reused()  # before any sample is made again: it may be another one then
        repeated = tuple(self._again(until_s)) if self.can_repeat else ()
        lengths, length_field = varying(self.lengths)
        return Samples(
            seconds=tuple(self.seconds),
            cpu_share=float(np.median(self.shares)),
            sample_bytes=self.kept_bytes / max(len(self.kept), 1),
            repeated=repeated,
            failed=self.failed,
            failure=self.failure,
            lengths=lengths,
            length_field=length_field,
            in_a_row_s=self._in_a_row_s() if self.can_repeat else None,
            reused=reused,
            sorted_labels=sorted_labels(self.labels) if self.can_repeat else "",
        )

    @property
    def _is_settled(self) -> bool:
        """True if more samples would hardly change the figures."""
        times = np.array(self.seconds[2:])
        if len(times) < _SETTLED_SAMPLES or len(times) % 50:
            return False
        return bool(times.std() / len(times) ** 0.5 <= _SETTLED * times.mean())

    def _one(self, index: object) -> bool:
        """Make a sample; return False at the end of the dataset, or if too many samples failed before one succeeded."""
        process_s = time.process_time()
        before = self.clock.now()
        try:
            sample = self.ask(index)
        except StopIteration:
            return False
        except (Exception, SystemExit, KeyboardInterrupt) as exc:  # raised by user code: Ctrl-C is not sent here
            self.failed += 1
            self.failure = self.failure or f"sample {index!r:.40}:\n{users_traceback(exc)}"
            return self.failed < _MOST_FAILURES or bool(self.seconds)
        seconds, computed = self.clock.since(before)
        # While this thread waits, threads of an event loop or of a library may compute for it.
        computed = max(computed, time.process_time() - process_s)
        self.seconds.append(seconds)
        self.shares.append(min(1.0, computed / seconds))
        self.made.append(index)
        for name, length in lengths_of(sample).items():
            self.lengths.setdefault(name, []).append(length)
        if isinstance(index, int):
            for name, label in classes_of(sample).items():
                self.labels.setdefault(name, {})[index] = label
        if len(self.kept) < self.keep and self.kept_bytes < _KEPT_BYTES:
            self.kept.append(sample)
            self.kept_bytes += size_of(sample)
            if len(self.digests) < _CHECKED:
                self.digests.append(digest_of(sample))
        return True

    def _in_a_row_s(self) -> float | None:
        """Return the time of a quick sample, as a worker makes it.

        Between two readings of a clock, and while all samples are kept, it would take longer: caches and memory that
        was just freed are quicker.
        """
        if np.median(self.seconds) > _QUICK_S:
            return None
        some = self.made[:_IN_A_ROW]
        try:
            return usual_s(lambda: deque(map(self.ask, some), maxlen=0), self.clock) / len(some)
        except Exception:  # a sample that could be made before
            return None

    def _reused(self) -> str:
        """Return the first field of a kept sample that later samples have changed; empty if none has."""
        for sample, before in zip(self.kept, self.digests, strict=False):
            now = digest_of(sample)
            for name in before:
                if now.get(name) != before[name]:
                    return name
        return ""

    def _again(self, until_s: float) -> Iterator[tuple[str, float]]:
        """Make the slowest samples again, and yield the index and shortest time of each.

        Alternates with a median sample. If that takes about as long now, the machine is slow, and the slow sample is
        left out.
        """
        usual = float(np.median(self.seconds))
        order = np.argsort(self.seconds)[::-1]
        usual_index = self.made[order[len(order) // 2]]
        for place in order[:_SLOWEST].tolist():
            first, index = self.seconds[place], self.made[place]
            if first < _SLOW * usual or time.monotonic() + first > until_s + 1:
                return
            times: dict[bool, list[float]] = {True: [first], False: []}
            try:
                for which, is_slow in [(usual_index, False), (index, True)] * _REPEATS:
                    before = self.clock.now()
                    self.ask(which)
                    times[is_slow].append(self.clock.since(before)[0])
            except Exception:  # it worked before; another finding reports samples that fail
                continue
            if min(times[True]) > _SLOW / 2 * float(np.median(times[False])):
                yield f"{index!r:.40}", min(times[True])

    def _nothing_came(self) -> DatasetFailed:
        if not self.failed:
            text = "The dataset is empty: it has no samples. Check the paths and filters that it is made from."
            return DatasetFailed(text, "empty")
        where, _, traceback = self.failure.partition(":\n")
        text = f"None of the {self.failed} samples that were tried could be made. The first was {where}."
        return DatasetFailed(f"{text} Fix the exception that it raises, then run again.", "raises", traceback)
