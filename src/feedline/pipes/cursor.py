"""Cursors: a position in a stream, and how an operator keeps one.

A cursor hands out samples in lists, because a Python call per sample and operator costs more than many samples do. A
position consists of a few numbers: no sample is part of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from feedline.pipes.lap import CursorState, Lap, Samples
from feedline.system.failures import is_last

_ATTEMPTS = 3
"""How often to try a sample that is being skipped. A guess: most transient errors are over by then."""


class Cursor(ABC):
    """A position in a stream."""

    @abstractmethod
    def take(self, count: int) -> Samples:
        """Return the next samples: at least one and at most `count`. An empty list means the end.

        If the first one fails, its exception is raised, and the next call continues after it. If a later one fails,
        the samples before it are returned first.
        """

    @abstractmethod
    def state(self) -> CursorState:
        """Return the position, as plain values."""

    @abstractmethod
    def restore(self, state: CursorState) -> None:
        """Go to a position that `state` returned; called on a new cursor of the same stage and lap."""

    def skip(self, count: int) -> int:
        """Go past up to `count` samples, without making them where possible; return how many there were.

        A sample that fails counts as one.
        """
        skipped, attempt = 0, 1
        while skipped < count:
            try:
                found, attempt = len(self.take(count - skipped)), 1
            except Exception as exc:  # raised where the sample is due, which is not here
                if is_last(exc):
                    raise
                # There, it may be retried: a transient error must not make a difference.
                if attempt < _ATTEMPTS and self.try_again():
                    attempt += 1
                    continue
                found, attempt = 1, 1
            if not found:
                break
            skipped += found
        return skipped

    def try_again(self) -> bool:
        """Make the next `take` retry the sample that failed; False if that is impossible."""
        return False


# Any: samples, or what they are made from.
def up_to_failure(make: Callable[[Any], Samples], items: Any) -> tuple[Samples, Exception | None]:
    """Return what several items become in one call; if that fails, those before the first that fails, and why.

    Args:
        make: returns a sample for each item.
        items: a sequence that can be sliced.
    """
    try:
        return make(items), None
    except Exception:
        made: Samples = []
        for number in range(len(items)):
            try:
                made += make(items[number : number + 1])
            except Exception as exc:
                return made, exc
        return made, None


@dataclass
class Kept:
    """Samples that a cursor has made but not handed out, and the failure that comes after them."""

    samples: Samples = field(default_factory=list)
    at: int = 0
    failure: Exception | None = None

    def take(self, count: int) -> Samples:
        found = self.samples[self.at : self.at + count]
        self.at += len(found)
        return found

    @property
    def is_empty(self) -> bool:
        return self.at >= len(self.samples) and self.failure is None


class OperatorCursor(Cursor):
    """A cursor that makes its samples from those of another one.

    Its position is where its source was before the samples that it works on, and how many it has handed out since. So
    no sample is part of a state: they are made again. A sample that failed counts as one that was handed out.
    """

    def __init__(self, source: Cursor, lap: Lap) -> None:
        self._source = source
        self._lap = lap
        self._kept = Kept()
        self._waiting: Samples = []
        """Samples of the source that are still to be processed."""
        self._number = 0
        """Samples taken from the source so far."""
        self._before: CursorState = {}
        self._number_before = 0
        self._given = 0
        """Samples handed out since `_before`."""
        self._pending_drop = 0
        """Samples to make again and drop, after a restoration."""
        self._failed: Samples = []
        """The source's samples of what failed last; empty if the source itself failed."""

    @abstractmethod
    def _process(self, items: Samples, first: int) -> Samples:
        """Return what samples of the source, numbered from `first`, become; raise `Stopped` if one fails."""

    def _need(self, count: int) -> int:
        """Return how many samples of the source to take for `count` of our own."""
        return count

    def _finish(self) -> Samples:
        """Return the samples that are left to hand out when the source has ended."""
        return []

    def take(self, count: int) -> Samples:
        if self._pending_drop:
            self._drop()
        return self._take(count)

    def _drop(self) -> None:
        left, self._pending_drop = self._pending_drop, 0
        while left:
            try:
                gone = len(self._take(left))
            except Exception as exc:  # it was raised when the sample was due
                if is_last(exc):
                    raise
                gone = 1
            if not gone:
                break
            left -= gone

    def _take(self, count: int) -> Samples:
        kept = self._kept
        mark = self._before, self._number_before, self._given
        found: Samples = []
        try:
            return self._collect(count, found)
        except Exception:
            raise
        except BaseException:  # an interrupt: what was collected comes next time
            kept.samples, kept.at = found + kept.samples[kept.at :], 0
            self._before, self._number_before, self._given = mark
            raise

    def _collect(self, count: int, found: Samples) -> Samples:
        kept = self._kept
        found += self._hand_out(count)
        while len(found) < count and kept.at >= len(kept.samples):
            if kept.failure is not None:
                if found:
                    break
                failure, kept.failure = kept.failure, None
                self._given += 1
                raise failure
            try:
                made = self._make(count - len(found))
            except Exception as exc:  # raised by the source
                self._number += 1
                self._failed = []
                kept.failure = exc
                continue
            if made is None:
                break
            kept.samples, kept.at = made, 0
            found += self._hand_out(count - len(found))
        return found

    def _hand_out(self, count: int) -> Samples:
        found = self._kept.take(count)
        self._given += len(found)
        return found

    def _make(self, count: int) -> Samples | None:
        """Make further samples, perhaps none; None at the end."""
        if not self._waiting:
            if not self._holds():
                self._mark()
            items = self._taken(self._need(count))
            first, self._number = self._number, self._number + len(items)
        else:
            items, self._waiting = self._waiting, []
            first = self._number - len(items)
        try:
            return self._process(items, first) if items else self._finish() or None
        except Stopped as stop:
            self._failed, self._waiting = stop.items, stop.rest
            self._kept.failure = stop.reason
            return stop.made
        except Exception:
            raise
        except BaseException:  # an interrupt
            self._waiting = items
            raise

    def _taken(self, count: int) -> Samples:
        """Return samples of the source."""
        return self._source.take(count)

    def _mark(self) -> None:
        """Remember this position: everything before it is handed out."""
        self._before, self._number_before = self._source.state(), self._number
        self._given = 0

    def try_again(self) -> bool:
        if self._failed:
            self._waiting[:0] = self._failed
            self._failed = []
        elif self._source.try_again():
            self._number -= 1
        else:
            return False
        self._given -= 1
        return True

    def state(self) -> CursorState:
        if self._pending_drop:
            return {"source": self._before, "number": self._number_before, "given": self._pending_drop}
        if self._kept.is_empty and not self._waiting and not self._holds():
            self._mark()
        return {"source": self._before, "number": self._number_before, "given": self._given}

    def _holds(self) -> bool:
        """True if samples of the source are held that no sample handed out so far contains."""
        return False

    def restore(self, state: CursorState) -> None:
        self._before, self._number_before = state["source"], state["number"]
        self._source.restore(self._before)
        self._number, self._given = self._number_before, 0
        self._kept, self._waiting = Kept(), []
        self._pending_drop = state["given"]


class Stopped(Exception):
    """A sample failed; what was made before it is handed out first.

    Args:
        reason: the exception.
        made: samples made before.
        items: the source's samples that the failed one was to be made from.
        rest: the source's samples after them.
    """

    def __init__(self, reason: Exception, made: Samples, items: Samples, rest: Samples) -> None:
        super().__init__(reason)
        self.reason, self.made, self.items, self.rest = reason, made, items, rest
