"""Streams that take turns: the common part of `zip`, `interleave` and `mix`.

Whose turn it is at each position is known before anything is read. So each stream is asked for all its samples of a
block at once, and a position that another worker makes costs nothing: an endless stream only counts what it has to
skip, until one of its samples is needed. A worker that never needs a stream does not read it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Lap, Places, Samples
from feedline.pipes.stage import StreamStage

_BLOCK = 1 << 12
"""Positions to plan at a time while skipping."""


class Buffer:
    """A cursor whose next samples can be read ahead."""

    def __init__(self, cursor: Cursor, *, is_endless: bool = False) -> None:
        self._cursor = cursor
        self._is_endless = is_endless
        self.samples: Samples = []
        self.at = 0
        self._failure: Exception | None = None
        """Raised once the samples are gone."""
        self._before: CursorState = {}
        """The cursor's state before the samples."""
        self._owed = 0
        """Samples to skip before another one is read."""

    @property
    def ready(self) -> int:
        """How many samples were read ahead."""
        return len(self.samples) - self.at

    @property
    def fails(self) -> bool:
        """True if the next sample is known to fail."""
        return self._failure is not None and self.ready == 0

    def fill(self, count: int) -> None:
        """Read ahead until `count` samples are ready, the stream ends, or a sample fails."""
        if self.ready >= count or self._failure is not None:
            return
        if self.ready == 0:
            self._pay()
            self._before, self.samples, self.at = self._cursor.state(), [], 0
        while self.ready < count:
            try:
                found = self._cursor.take(count - self.ready)
            except Exception as exc:
                self._failure = exc
                return
            if not found:
                return
            self.samples += found

    def _pay(self) -> None:
        if self._owed:
            self._cursor.skip(self._owed)
            self._owed = 0

    def pop(self) -> object:
        """Return the next sample; raises StopIteration at the end, or the exception of the sample."""
        if self.ready == 0:
            self.fill(1)
        if self.ready:
            self.at += 1
            return self.samples[self.at - 1]
        if self._failure is None:
            raise StopIteration
        failure, self._failure = self._failure, None
        raise failure

    def take(self, count: int) -> Samples:
        """As `Cursor.take`."""
        if self.ready:
            found = self.samples[self.at : self.at + count]
            self.at += len(found)
            return found
        if self._failure is not None:
            self.pop()
        self._pay()
        return self._cursor.take(count)

    def put_back(self) -> None:
        """Make the sample that `pop` returned last the next one again."""
        self.at -= 1

    def skip(self, count: int) -> int:
        """As `Cursor.skip`."""
        skipped = min(count, self.ready)
        self.at += skipped
        if skipped < count and self._failure is not None:
            self._failure = None
            skipped += 1
        if skipped == count:
            return count
        if self._is_endless:
            self._owed += count - skipped
            return count
        self._pay()
        return skipped + self._cursor.skip(count - skipped)

    def try_again(self) -> bool:
        """As `Cursor.try_again`."""
        return self._cursor.try_again()

    def state(self) -> CursorState:
        if self.ready == 0 and self._failure is None:
            return {"source": self._cursor.state(), "owed": self._owed}
        return {"source": self._before, "owed": self.at}

    def restore(self, state: CursorState) -> None:
        self._cursor.restore(state["source"])
        self._owed = state["owed"]
        self.samples, self.at, self._failure = [], 0, None


def buffers(parts: Sequence[StreamStage], lap: Lap) -> list[Buffer]:
    """Return a buffer for each stream."""
    return [Buffer(part.open(lap.in_branch(number)), is_endless=part.is_endless) for number, part in enumerate(parts)]


class TurnsCursor(Cursor):
    """A cursor over streams that take turns."""

    def __init__(self, parts: Sequence[StreamStage], lap: Lap) -> None:
        self._buffers = buffers(parts, lap)
        self._are_endless = all(part.is_endless for part in parts)
        self._at = 0
        """Positions so far, including those whose sample failed."""
        self._ended = False
        self._last = 0

    @abstractmethod
    def _turns(self, start: int, count: int) -> Places:
        """Return the number of the stream whose turn it is at each of these positions."""

    def _end_of(self, number: int) -> bool:
        """Note that a stream has ended when it was due; return whether the others continue without it."""
        return False

    def take(self, count: int) -> Samples:
        found: Samples = []
        while not found and not self._ended:
            turns = self._turns(self._at, count)
            for number, needed in enumerate(np.bincount(turns, minlength=len(self._buffers)).tolist()):
                if needed:
                    self._buffers[number].fill(needed)
            try:
                self._collect(turns.tolist(), found)
            except Exception:
                raise
            except BaseException:  # an interrupt: what was collected comes next time
                for number in turns[: len(found)].tolist():
                    self._buffers[number].put_back()
                self._at -= len(found)
                raise
        return found

    def _collect(self, turns: list[int], found: Samples) -> None:
        for number in turns:
            buffer = self._buffers[number]
            if found and buffer.fails:
                return
            try:
                sample = buffer.pop()
            except StopIteration:
                self._ended = not self._end_of(number)
                return
            except Exception:
                self._last = number
                self._at += 1
                raise
            found.append(sample)
            self._at += 1

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and not self._ended:
            turns = self._turns(self._at, min(count - skipped, _BLOCK))
            skipped += self._skip_all(turns) if self._are_endless else self._skip_each(turns.tolist())
        return skipped

    def _skip_all(self, turns: Places) -> int:
        for number, needed in enumerate(np.bincount(turns, minlength=len(self._buffers)).tolist()):
            self._buffers[number].skip(needed)
        self._at += len(turns)
        return len(turns)

    def _skip_each(self, turns: list[int]) -> int:
        for skipped, number in enumerate(turns):
            if not self._buffers[number].skip(1):
                self._ended = not self._end_of(number)
                return skipped
            self._at += 1
        return len(turns)

    def try_again(self) -> bool:
        if not self._buffers[self._last].try_again():
            return False
        self._at -= 1
        return True

    def state(self) -> CursorState:
        return {"at": self._at, "ended": self._ended, "sources": [buffer.state() for buffer in self._buffers]}

    def restore(self, state: CursorState) -> None:
        self._at, self._ended = state["at"], state["ended"]
        for buffer, own in zip(self._buffers, state["sources"], strict=True):
            buffer.restore(own)
