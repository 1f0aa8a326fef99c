"""Plans over third-party samplers: followed exactly, entered by iterating through them."""

from __future__ import annotations

import contextlib
import copy
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from feedline.errors import BadState
from feedline.order.plan import Plan
from feedline.randomness.keys import mix
from feedline.types import Draw, IndexBlock, Share
from feedline.types.indices import taken

_LONG_S = 1.0
"""Going through indices for longer than this is worth a word. A guess at where people begin to wonder."""


class ForeignPlan(Plan):
    """What an iterator yields.

    Args:
        indices: the iterator, already where it is to go on.
        draw_key: from which the random numbers of its samples follow.
        share: this rank, so that ranks draw different numbers.
        consumed: batches of the epoch that were consumed before this plan was entered.
        origin: what is needed to begin the same order again, in plain values. It is filled in by the iterator when
            that yields its first item.
        find_snapshot: returns a function that tells the state of a stateful sampler, None if there is none. Called just
            before the first item is asked for, which is when some iterators come to be.
        facts: what else a state has to hold, in plain values.
        entered: what a snapshot said of the state of the sampler, if the plan goes on from there.
        after: returns what the order of the next epoch would begin with.
        drawing: entered while the first batch is asked for, which is when most samplers draw their order.
        goes_ahead: True if nobody can notice when batches are asked for.
        progress: says how many batches of this plan the training loop has, so that old states can be forgotten.
    """

    def __init__(
        self,
        indices: Iterator[Any],
        *,
        draw_key: int = 0,
        share: Share | None = None,
        consumed: int = 0,
        origin: dict[str, Any] | None = None,
        find_snapshot: Callable[[], Callable[[], Any] | None] | None = None,
        facts: dict[str, Any] | None = None,
        entered: dict[str, Any] | None = None,
        after: Callable[[], dict[str, Any]] | None = None,
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
        self._snapshot: Callable[[], Any] | None = None
        self._facts = facts or {}
        self._entered = entered
        self._after = after
        self._drawing = drawing
        self.goes_ahead = goes_ahead
        self.asks_user = not goes_ahead
        self._progress = progress
        self._ahead: list[Any] = []
        self._drawn = 0
        self._states: deque[tuple[int, Any]] = deque()
        """States of a stateful sampler after so many batches."""
        self._last: int | None = None
        """The number of batches, once it is known that there are no more."""
        held = (entered or {}).get("held", [])
        self._held: list[Any] = copy.deepcopy(held)
        """The first batch, if the sampler had yielded it before its state was told."""
        self._first: list[Any] = list(self._held)
        """The first batch, while a state may be asked for that comes before it."""
        if self._held and entered is not None and entered.get("redraw"):  # it is the last as well
            self._states.append((0, entered["sampler_state"]))

    def _begin(self) -> None:
        """Find out whether the sampler has a state, once."""
        if self._find_snapshot is None:
            return
        self._snapshot, self._find_snapshot = self._find_snapshot(), None
        if self._snapshot is not None:
            self._states.append((len(self._held), copy.deepcopy(self._snapshot())))

    def __next__(self) -> Any:
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
            indices = taken(indices)  # the sampler may use it again for the next batch
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
        """Forget states that are older than the one before the last batch that was delivered."""
        while len(self._states) > 1 and self._states[1][0] < done:
            self._states.popleft()

    def draw(self, ordinal: int) -> Draw:
        number = (self._consumed + ordinal) * self._share.world_size + self._share.rank
        return Draw(mix(self._draw_key, number))

    def state(self, done: int) -> dict[str, Any]:
        self._begin()
        if self._origin is not None and not self._origin and not self._drawn:
            with contextlib.suppress(StopIteration):  # nothing to draw: nothing to remember
                self._ahead.append(next(self))
        state = {"unit": "own batches", "consumed": self._consumed + done, **self._facts, **(self._origin or {})}
        return {**state, **self._sampler_state(done)}

    def last_state(self, done: int) -> dict[str, Any]:
        if self._drawn:
            return self.state(done)
        # Nothing was asked of the sampler, so its order is not known: whoever begins draws it.
        known = {**self._facts, **(self._origin or {}), **(self._entered or {})}
        return {"unit": "own batches", "consumed": self._consumed, **known}

    def _sampler_state(self, done: int) -> dict[str, Any]:
        """Return the state of a stateful sampler after so many batches.

        A sampler that was asked for more than it had may have begun to think of its next epoch. So after the last
        batch it is the state before that one, to be drawn again.

        A sampler that was asked for nothing yet may still tell how its last pass ended: many are generators, which do
        nothing before. So before the first batch it is the state after that one, and the batch.
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
                return _told(state, copy.deepcopy(self._first), redraw=1 if ends else 0)
        redraw = 1 if done == self._last and done else 0
        for number, sampler_state in list(self._states):  # another thread may ask for a batch meanwhile
            if number == done - redraw:
                return _told(sampler_state, [], redraw=redraw)
        return {}  # none that has a state, or none before the first batch

    def after(self) -> dict[str, Any]:
        state = {} if self._after is None else self._after()
        self._last = self._drawn
        found = self._sampler_state(self._drawn)
        return {**state, **found, "finish": True} if found else state


def _told(state: Any, held: list[Any], *, redraw: int) -> dict[str, Any]:
    """Return what a snapshot says of a stateful sampler."""
    return {"sampler_state": copy.deepcopy(state), "held": held, "redraw": redraw}


class Delivered(Protocol):
    """Knows how many batches the training loop has."""

    @property
    def delivered(self) -> int:
        """The number of batches."""


def skip(indices: Iterator[Any], count: int, what: str) -> Iterator[Any]:
    """Go through the first `count` items of an iterator, without loading any sample; say so if it takes long.

    Returns:
        The iterator.
    """
    begun = time.monotonic()
    told = False
    for done in range(count):
        try:
            next(indices)
        except StopIteration:
            raise BadState(
                f"The state says that {count:,} batches were consumed, but {what} has only {done:,}. Use the sampler "
                "that the state was saved with."
            ) from None
        if not told and not done & 0x3FF and time.monotonic() - begun > _LONG_S:
            told = True
            warnings.warn(
                f"Resuming goes through {count:,} batches of indices of {what}, which cannot be entered in the middle; "
                f"{done:,} took {time.monotonic() - begun:.1f} s. No sample is loaded. The samplers of "
                "feedline.samplers, and samplers with state_dict and load_state_dict, resume at once.",
                stacklevel=2,
            )
    return indices
