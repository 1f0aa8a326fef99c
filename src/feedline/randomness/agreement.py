"""Workers that are threads compare what each of them finds out about a stream that all of them read.

Which samples a stream has depends on what users' functions return: whether a sample passes a filter, how many others it
becomes, how long it is. Every worker finds that out by itself, and keeps its share of the samples. Worker processes
draw the same random numbers for it, but threads share the process-wide generators, so each draws others. Without this
comparison, some samples would be missing, and others would come twice.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence

from feedline.errors import BadOption

_MOST = 1 << 18
"""Values to remember of an operator, for workers that have not come to them. A guess: 2 MB."""

_LATE = 2
"""Epochs that a worker may be behind another one, with tasks that it was sent before."""


class Findings:
    """What the workers have found in one epoch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[int, list[int]]] = {}
        """Of each operator, the latest values that a worker has found, and the position of the first of them."""
        self.error: str | None = None
        """Says about what workers disagree, once some do: all of them stop then."""

    def compare(self, where: Hashable, label: str, first: int, values: Sequence[int]) -> None:
        """Compare the values that this worker has found, at consecutive positions, with what others have.

        `where` identifies the operator, and `label` names it. Raises BadOption if another worker found something else.
        """
        with self._lock:
            if self.error is None:
                self._compare(where, label, first, list(values))
        self.check()

    def is_equal(self, where: Hashable, value: int) -> bool:
        """Return whether other workers have found the same value; they may go on if not."""
        with self._lock:
            return self._known.setdefault(where, (0, [value]))[1] == [value]

    def check(self) -> None:
        """Raise BadOption if workers disagree."""
        if self.error is not None:
            raise BadOption(self.error)

    def _compare(self, where: Hashable, label: str, first: int, values: list[int]) -> None:
        begin, known = self._known.get(where, (first, []))
        end = begin + len(known)
        low, high = max(first, begin), min(first + len(values), end)
        if low < high and known[low - begin : high - begin] != values[low - first : high - first]:
            place = next(place for place in range(low, high) if known[place - begin] != values[place - first])
            self.error = (
                f"Worker threads disagree about sample {place} of the source of {label}: each of them finds out by "
                "itself which samples the stream has, so some would be missing and others would come twice. random, "
                "numpy.random and torch's generator are shared by all threads: draw from feedline.rng() instead, "
                "which belongs to the sample, or use engine='process'."
            )
        elif first > end:  # this worker has begun later, where another one was replaced
            self._known[where] = first, values
        elif first + len(values) > end:
            known += values[end - first :]
            if len(known) > 2 * _MOST:
                begin, known = begin + len(known) - _MOST, known[-_MOST:]
            self._known[where] = begin, known


class Agreement:
    """The findings of the workers of one engine: of the epoch that each of them is in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[int, Findings] = {}

    def of(self, epoch: int) -> Findings:
        """Return the findings of an epoch. Called by each worker that enters it."""
        with self._lock:
            for older in [number for number in self._epochs if number < epoch - _LATE]:
                del self._epochs[older]
            return self._epochs.setdefault(epoch, Findings())
