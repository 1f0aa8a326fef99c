"""Samples that take the places of those that failed: taken from a batch that comes later, in the order of batches.

A batch some way ahead is the reserve. Its samples are handed out one by one to the batches before it; when they are
used up, or when it is its own turn, another batch further ahead takes over. So every sample that works is delivered
once, and only the last batch is short. Which sample goes where follows from which samples failed and from nothing else:
batches are served strictly in order, whoever made them and when.

If ranks go through an order together, each keeps its number of batches: the reserve keeps one sample, and when there
are no others, batches are left short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from feedline.errors import BadState
from feedline.failures import is_interrupt, words
from feedline.loader.batch_indices import as_list, count_of
from feedline.plan.plan import Plan
from feedline.types import Draw

LOOK_AHEAD = 64
"""How many batches ahead the reserve is. More than the usual window, so that it has seldom been begun; a guess beyond
that. It must not depend on the number of workers: the outcome would."""

FURTHEST = 1 << 12
"""How many batches ahead the reserve may be at most, if all nearer ones have given their samples away."""

# Any, throughout: whatever the sampler yields.


@dataclass(frozen=True)
class ReserveState:
    """Which batches ahead have given samples away."""

    source: int | None = None
    """The number of the batch that gives samples now."""
    used: int = 0
    """How many it has given."""
    eaten: tuple[int, ...] = ()
    """Numbers of batches that have given all of theirs."""

    def as_dict(self, delivered: int) -> dict[str, Any]:
        """Return what a saved state holds, counted from the batches that were delivered; {} if there is nothing."""
        eaten = [number - delivered for number in self.eaten if number >= delivered]
        state: dict[str, Any] = {}
        if self.source is not None and self.source >= delivered and self.used:
            state = {"source": self.source - delivered, "used": self.used}
        return {**state, "eaten": eaten} if eaten else state

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> ReserveState:
        """Read what `as_dict` made, in a plan that is entered there.

        Raises:
            BadState: it is something else.
        """
        try:
            source, used, eaten = state.get("source"), state.get("used", 0), state.get("eaten", [])
            numbers = list(eaten) if source is None else [source, *eaten]
            if type(used) is not int or used < 0 or (source is None) != (used == 0):
                raise TypeError(f"{used!r:.100} samples of batch {source!r:.100} were used")
            if not all(type(number) is int and 0 <= number < FURTHEST for number in numbers):
                raise TypeError(f"not all of {numbers!r:.100} are numbers of batches that are near")
            if len(set(numbers)) < len(numbers):
                raise TypeError(f"{numbers!r:.100} names a batch twice")
        except (AttributeError, TypeError) as exc:
            raise BadState(f"The state is damaged: {state!r:.200} is no reserve of samples: {words(exc)}.") from exc
        return cls(source, used, tuple(eaten))


class Reserve(Plan):
    """A plan, and which of its batches give samples to others.

    Args:
        plan: the plan.
        keeps_steps: True if ranks have to make as many batches as the others do.
        batched: False if the plan is of single samples.
        state: what a snapshot says; None at the beginning.
    """

    def __init__(
        self, plan: Plan, *, keeps_steps: bool, batched: bool = True, state: ReserveState | None = None
    ) -> None:
        self._plan = plan
        self._batched = batched
        self._gone: frozenset[int] = frozenset()
        self._trouble: Exception | None = None
        """What the sampler raised when it was asked for batches ahead: raised when it is their turn."""
        self._keeps = 1 if keeps_steps else 0
        self._drawn: deque[Any] = deque()
        """Batches that were drawn from the plan ahead of their turn."""
        self._next = 0
        """The number of the batch that comes next."""
        self._open: dict[int, Any] = {}
        """What batches consist of that are not done with."""
        self._state = state or ReserveState()
        self._left: list[Any] | None = None
        """What is left of the reserve; None until it was looked at."""
        self._marks: deque[tuple[int, ReserveState]] = deque([(-1, self._state)])
        """What was so after batches that samples were taken for."""

    def __next__(self) -> Any:
        """Return what the next batch consists of; `EATEN` if it has given everything away."""
        if not self._drawn and self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        indices = self._drawn.popleft() if self._drawn else next(self._plan)
        number = self._next
        self._next += 1
        if number in self._state.eaten:
            return EATEN
        self._open[number] = indices
        return indices

    def is_source(self, number: int) -> bool:
        """True if a batch has given samples away, or may have to: it cannot be made before those ahead of it are."""
        return number == self._state.source

    def rest_of(self, number: int) -> tuple[list[Any], int]:
        """Return what is left of the batch that gave samples, now that it is its turn, and how many it gave."""
        self._look_at_source()
        assert self._left is not None
        rest, used = self._left, self._state.used
        self._left = None
        self._state = ReserveState(None, 0, self._state.eaten)
        return rest, used

    def take(self, number: int, count: int) -> tuple[list[Any], list[int]]:
        """Take samples for batch `number`, all batches before which are done with.

        Returns:
            The samples, fewer if there are not as many; and the numbers of batches that gave some for the first time.
        """
        taken: list[Any] = []
        touched: list[int] = []
        while len(taken) < count:
            if self._state.source is None and not self._choose(number, touched):
                break
            self._look_at_source()
            assert self._left is not None
            some = self._left[: min(count - len(taken), len(self._left) - self._keeps)]
            if not some:
                break
            taken += some
            del self._left[: len(some)]
            source, eaten = self._state.source, self._state.eaten
            assert source is not None
            if self._left:
                self._state = ReserveState(source, self._state.used + len(some), eaten)
            else:
                self._state = ReserveState(None, 0, (*(old for old in eaten if old > number), source))
                self._left = None
        return taken, touched

    def _choose(self, number: int, touched: list[int]) -> bool:
        """Choose the batch that gives samples from now on; False if none is left."""
        for candidate in self._candidates(number):
            taken = candidate in self._state.eaten or candidate in self._gone
            indices = None if taken else self._indices(candidate)
            if indices is not None and count_of(indices, batched=self._batched) > self._keeps:
                self._state = ReserveState(candidate, 0, self._state.eaten)
                touched.append(candidate)
                return True
        return False

    def _candidates(self, number: int) -> Iterator[int]:
        """Yield batches that may give samples to batch `number`: some way ahead and further, then those before.

        How much was drawn already must not matter: that depends on the workers.
        """
        target = number + LOOK_AHEAD
        for candidate in range(target, number + FURTHEST):
            self._draw_to(candidate)
            if candidate >= self._next + len(self._drawn):
                break
            yield candidate
        yield from range(min(target, self._next + len(self._drawn)) - 1, number, -1)

    def _draw_to(self, number: int) -> None:
        """Draw batches from the plan up to `number`, if there are so many."""
        while self._next + len(self._drawn) <= number and self._trouble is None:
            try:
                self._drawn.append(next(self._plan))
            except StopIteration:
                return
            except Exception as exc:
                if is_interrupt(exc):
                    raise
                self._trouble = exc

    def exclude(self, numbers: Collection[int]) -> None:
        """Take nothing from batches that were delivered before, out of turn."""
        self._gone = frozenset(numbers)

    def checkpoint(self) -> Any:
        """Return what `undo` needs to forget everything that is done from now on."""
        return self._state, None if self._left is None else list(self._left), len(self._marks)

    def undo(self, checkpoint: Any) -> None:
        """Go back to a checkpoint."""
        self._state, self._left, marks = checkpoint
        while len(self._marks) > marks:
            self._marks.pop()

    def _indices(self, number: int) -> Any:
        """Return what a batch ahead consists of; None if it was delivered out of turn."""
        return self._open.get(number) if number < self._next else self._drawn[number - self._next]

    def _look_at_source(self) -> None:
        if self._left is not None or self._state.source is None:
            return
        self._draw_to(self._state.source)
        is_there = self._state.source < self._next + len(self._drawn)
        left = as_list(self._indices(self._state.source), batched=self._batched) if is_there else []
        if self._state.used >= len(left):
            raise BadState(
                f"The state is damaged: {self._state.used} samples were taken from a batch that has {len(left)}."
            )
        self._left = left[self._state.used :]

    def is_eaten(self, number: int) -> bool:
        """True if a batch has given all its samples to others."""
        return number in self._state.eaten

    def mark(self, number: int) -> None:
        """Note that batch `number` is final: a state that is saved after it holds what is so now."""
        self._marks.append((number, self._state))

    def done(self, number: int) -> None:
        """Forget what a batch consists of, now that it was delivered."""
        self._open.pop(number, None)

    # -- as a plan ---------------------------------------------------------------------------------------------------

    @property
    def can_move(self) -> bool:  # type: ignore[override]  # as the plan has it
        return self._plan.can_move

    def draw(self, ordinal: int) -> Draw:
        return self._plan.draw(ordinal)

    def state(self, done: int) -> dict[str, Any]:
        return {**self._plan.state(done), **self._own_state(done)}

    def last_state(self, done: int) -> dict[str, Any]:
        return {**self._plan.last_state(done), **self._own_state(done)}

    def after(self) -> dict[str, Any]:
        return self._plan.after()

    def _own_state(self, done: int) -> dict[str, Any]:
        while len(self._marks) > 1 and self._marks[1][0] < done:
            self._marks.popleft()
        state = self._marks[0][1].as_dict(done)
        return {"reserve": state} if state else {}


def with_reserve(plan: Plan, order: dict[str, Any], *, refills: bool, keeps_steps: bool, batched: bool) -> Plan:
    """Return a plan whose batches may take samples from those that follow, if that is wanted.

    Args:
        plan: the plan.
        order: what a snapshot says of the order.
        refills: True if samples that are left out make room for others.
        keeps_steps: True if ranks have to make as many batches as the others do.
        batched: False if the plan is of single samples.

    Raises:
        BadState: the snapshot holds something that is no state of a reserve.
    """
    saved = order.get("reserve")
    if not refills and not saved:
        return plan
    state = ReserveState.from_dict({} if saved is None else saved)
    return Reserve(plan, keeps_steps=keeps_steps, batched=batched, state=state)


class _Eaten:
    """Stands in for a batch that has given all its samples to others."""


EATEN = _Eaten()
