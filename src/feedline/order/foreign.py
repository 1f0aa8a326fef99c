"""Plans for third-party samplers: they follow a sampler exactly, and reach a position by iterating up to it."""

from __future__ import annotations

import contextlib
import copy
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from feedline.errors import BadState
from feedline.order.plan import Plan
from feedline.randomness.keys import mix
from feedline.types import Draw, IndexBlock, Share, State
from feedline.types.indices import taken

_LONG_S = 1.0
"""Skipping indices for longer than this deserves a warning. A guess at when people begin to wonder."""


class ForeignPlan(Plan):
    """A plan over the items of an iterator.

    Args:
        indices: the iterator, already at the position to continue from.
        draw_key: the key from which the random numbers of its samples are derived.
        share: this rank, so that ranks draw different numbers.
        consumed: batches of the epoch that were consumed before this plan was entered.
        origin: what is needed to begin the same order again, in plain values. The iterator fills it in when it yields
            its first item.
        find_snapshot: returns a function that returns the state of a stateful sampler; None if it has no state. Called
            just before the first item is requested, because some iterators do not exist earlier.
        entries: further entries of a state, in plain values.
        entered: the sampler's part of a snapshot, if the plan continues from there.
        after: returns what the order of the next epoch would begin with.
        drawing: entered while the first batch is requested, which is when most samplers draw their order.
        goes_ahead: see `Plan.goes_ahead`.
        progress: counts the batches of this plan that the training loop has received; older states are dropped.
    """

    def __init__(
        self,
        indices: Iterator[object],
        *,
        draw_key: int = 0,
        share: Share | None = None,
        consumed: int = 0,
        origin: dict[str, object] | None = None,
        find_snapshot: Callable[[], Callable[[], object] | None] | None = None,
        entries: dict[str, object] | None = None,
        entered: State | None = None,
        after: Callable[[], dict[str, object]] | None = None,
        drawing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        goes_ahead: bool = False,
        progress: Delivered | None = None,
    ) -> None:
        self._indices = indices
        self._share = share or Share()
        self._draw_key = draw_key
        self._consumed = consumed
        self._origin = origin
        self._find_snapshot = find_snapshot
        self._snapshot: Callable[[], object] | None = None
        self._entries = entries or {}
        self._entered = entered
        self._after = after
        self._drawing = drawing
        self.goes_ahead = goes_ahead
        self.asks_user = not goes_ahead
        self._progress = progress
        self._ahead: list[object] = []
        self._drawn = 0
        self._states: deque[tuple[int, object]] = deque()
        """States of a stateful sampler, each with the number of batches it follows."""
        self._last: int | None = None
        """The number of batches, once it is known that there are no more."""
        held = (entered or {}).get("held", [])
        self._held: list[object] = copy.deepcopy(held)
        """The first batch, if the sampler had yielded it before its state was saved."""
        self._first: list[object] = list(self._held)
        """The first batch, kept for a state from before it."""
        if self._held and entered is not None and entered.get("redraw"):  # it is the last batch as well
            self._states.append((0, entered["sampler_state"]))

    def _begin(self) -> None:
        """Find out, once, whether the sampler has a state."""
        if self._find_snapshot is None:
            return
        find, self._find_snapshot = self._find_snapshot, None  # once, even if it raises the sampler's exception
        self._snapshot = find()
        if self._snapshot is not None:
            self._states.append((len(self._held), copy.deepcopy(self._snapshot())))

    def __next__(self) -> object:
        if self._ahead:
            return self._ahead.pop()
        if self._find_snapshot is not None:
            self._begin()
        if self._held:
            self._drawn += 1
            self._last = 1 if getattr(self._indices, "ended", False) else None
            return self._held.pop()
        if self._drawn:
            indices = next(self._indices)
        else:
            with self._drawing():
                indices = next(self._indices)
        if type(indices) is not IndexBlock:
            indices = taken(indices)  # the sampler may reuse the object for the next batch
        self._drawn += 1
        if self._snapshot is not None:
            if self._drawn == 1:
                self._first = [indices]
            self._states.append((self._drawn, copy.deepcopy(self._snapshot())))
            if getattr(self._indices, "ended", False):
                self._last = self._drawn
            if self._progress is not None:
                self._forget(self._progress.delivered)
        return indices

    def _forget(self, done: int) -> None:
        """Drop states that are older than the one before the last delivered batch."""
        while len(self._states) > 1 and self._states[1][0] < done:
            self._states.popleft()

    def draw(self, ordinal: int) -> Draw:
        number = (self._consumed + ordinal) * self._share.world_size + self._share.rank
        return Draw(mix(self._draw_key, number))

    def state(self, done: int) -> State:
        self._begin()
        if self._origin is not None and not self._origin and not self._drawn:
            with contextlib.suppress(StopIteration):  # nothing to draw: nothing to save
                self._ahead.append(next(self))
        state = {"unit": "own batches", "consumed": self._consumed + done, **self._entries, **(self._origin or {})}
        return {**state, **self._sampler_state(done)}

    def last_state(self, done: int) -> dict[str, object]:
        if self._drawn:
            return self.state(done)
        # The sampler has not been asked for anything, so its order is not known. It is drawn when the epoch begins.
        known = {**self._entries, **(self._origin or {}), **(self._entered or {})}
        return {"unit": "own batches", "consumed": self._consumed, **known}

    def _sampler_state(self, done: int) -> dict[str, object]:
        """Return the state of a stateful sampler after `done` batches.

        A sampler that was asked for more than it has may have started its next epoch. So after the last batch, this is
        the state before that batch, which is then drawn again.

        A sampler that was asked for nothing yet may still report the end of its last pass: many are generators, which
        run no code before that. So before the first batch, this is the state after that batch, and the batch itself.
        """
        if done == 0 and self._entered is not None:
            return copy.deepcopy(self._entered)
        if done == 0 and self._snapshot is not None:
            if not self._drawn:
                with contextlib.suppress(StopIteration):  # nothing to draw: nothing to hold
                    self._ahead.append(next(self))
            if self._first:
                ends = self._last == 1
                state = next(state for number, state in self._states if number == (0 if ends else 1))
                return _snapshot_part(state, copy.deepcopy(self._first), redraw=1 if ends else 0)
        redraw = 1 if done == self._last and done else 0
        for number, sampler_state in list(self._states):  # another thread may request a batch meanwhile
            if number == done - redraw:
                return _snapshot_part(sampler_state, [], redraw=redraw)
        return {}  # the sampler has no state, or none before the first batch

    def after(self) -> dict[str, object]:
        state = {} if self._after is None else self._after()
        self._last = self._drawn
        found = self._sampler_state(self._drawn)
        return {**state, **found, "finish": True} if found else state


def _snapshot_part(state: object, held: list[object], *, redraw: int) -> dict[str, object]:
    """Return the sampler's part of a snapshot."""
    return {"sampler_state": copy.deepcopy(state), "held": held, "redraw": redraw}


class Delivered(Protocol):
    """Counts the batches that the training loop has received."""

    @property
    def delivered(self) -> int:
        """The number of batches."""


def skip(indices: Iterator[object], count: int, what: str) -> Iterator[object]:
    """Skip the first `count` items of an iterator without loading any sample; warn if that takes long.

    Returns:
        The iterator.
    """
    begun = time.monotonic()
    has_warned = False
    for done in range(count):
        try:
            next(indices)
        except StopIteration:
            raise BadState(
                f"The state says that {count:,} batches were consumed, but {what} has only {done:,}. Use the sampler "
                "that the state was saved with."
            ) from None
        if not has_warned and not done & 0x3FF and time.monotonic() - begun > _LONG_S:
            has_warned = True
            warnings.warn(
                f"Resuming has to skip {count:,} batches of indices: {what} cannot start in the middle. "
                f"Skipping {done:,} took {time.monotonic() - begun:.1f} s so far. No sample is loaded. The samplers of "
                "feedline.samplers, and samplers with state_dict and load_state_dict, resume at once.",
                stacklevel=2,
            )
    return indices
