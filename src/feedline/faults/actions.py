"""The actions: what can happen to a failed sample.

Each is a value without side effects that maps a failure to a verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from feedline.abc.faults import NEIGHBOUR, Failure, Verdict, index_key
from feedline.errors import BadOption
from feedline.types import is_finite

ALLOWED = (
    "Use 'raise', 'skip', 'retry' or 'replace', or an action from feedline.faults with options: Raise(), Skip(...), "
    "Retry(...) or Replace(...)."
)
"""Ends every message about an invalid action."""

_MOST_DOUBLINGS = 1000
"""Keeps the doubled wait within the range of a float; the longest wait is reached long before."""


@dataclass(frozen=True, slots=True)
class Raise:
    """Let the exception through: the iteration ends with it.

    Example:
        >>> Raise().verdict(Failure(7, OSError(), "fetch", 1, None), chance=0.5).action
        'raise'
    """

    def verdict(self, failure: Failure, chance: float) -> Verdict:
        """Return what happens to the sample."""
        return Verdict("raise")


@dataclass(frozen=True, slots=True)
class Skip:
    """Leave the sample out: the batch is smaller by one. `Replace` keeps its size.

    Example:
        >>> Skip().verdict(Failure(7, OSError(), "fetch", 1, None), chance=0.5).action
        'skip'
    """

    def verdict(self, failure: Failure, chance: float) -> Verdict:
        """Return what happens to the sample."""
        return Verdict("skip")


@dataclass(frozen=True, slots=True)
class Replace:
    """Put another sample in its place.

    The failure of a whole batch, in the collate function, is raised: there is no other batch to take its place.

    Example:
        >>> failure = Failure(7, OSError(), "fetch", 1, None)
        >>> Replace().verdict(failure, chance=0.5).index
        NEIGHBOUR
        >>> Replace(by=lambda index: index - 1).verdict(failure, chance=0.5).index
        6
    """

    by: Callable[[Any], object] | None = None  # from the index of the sample that failed to the index of another
    """Chooses the other sample. None for the neighbour: the first of index + 1, index + 2 and so on that works,
    continuing with the first sample of the dataset after the last.
    """

    def __post_init__(self) -> None:
        if self.by is not None and not callable(self.by):
            raise BadOption(f"Replace(by={self.by!r:.200}) is not a function from one index to another.")

    def verdict(self, failure: Failure, chance: float) -> Verdict:
        """Return what happens to the sample.

        Raises:
            BadOption: `by` does not return another sample.
        """
        if failure.stage == "collate":  # `by` takes one index, not a list
            return Verdict("raise")
        if self.by is None:
            return Verdict("replace", index=NEIGHBOUR)
        other = self.by(failure.index)
        if other is None or index_key(other) == index_key(failure.index):
            raise BadOption(
                f"Replace(by={self.by!r:.200}) returned {other!r:.80} for sample {failure.index!r:.80}, which failed, "
                "instead of the index of another sample."
            )
        return Verdict("replace", index=other)


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the sample again, after waits that double each time; then do something else.

    The wait before further try n is `min(longest_s, wait_s * 2 ** (n - 1))`, times a random number between 0.5 and 1.5,
    so that workers that failed together do not retry together.

    Example:
        >>> retry = Retry(attempts=2, then="skip")
        >>> failures = [Failure(7, OSError(), "fetch", attempt, None) for attempt in (1, 2, 3)]
        >>> [retry.verdict(failure, chance=0.5).action for failure in failures]
        ['retry', 'retry', 'skip']
        >>> [retry.verdict(failure, chance=0.5).wait_s for failure in failures]
        [0.1, 0.2, 0.0]
    """

    attempts: int = 3
    """Further tries after the first."""
    then: Action = "raise"
    """What happens to the sample if none of them works; anything but another retry."""
    wait_s: float = 0.1
    """Wait before the first further try."""
    longest_s: float = 30.0
    """The longest wait."""

    def __post_init__(self) -> None:
        attempts: object = self.attempts  # any value from the user
        if isinstance(attempts, bool) or not isinstance(attempts, (int, np.integer)) or attempts < 1:
            raise BadOption(f"Retry(attempts={attempts!r:.200}) is not a number of further tries, 1 or more.")
        then = action_of(self.then, "Retry(then=...)")
        if isinstance(then, Retry):
            raise BadOption("Retry(then=...) cannot be another retry. Raise attempts=, or use another action.")
        waits = (self.wait_s, self.longest_s)
        if not all(map(is_finite, waits)) or not 0 <= self.wait_s <= self.longest_s:
            raise BadOption(
                f"Retry(wait_s={self.wait_s!r:.200}, longest_s={self.longest_s!r:.200}) are not two numbers of "
                "seconds, the first at most as large as the second."
            )
        plain = {"attempts": int(attempts), "then": then, "wait_s": float(waits[0]), "longest_s": float(waits[1])}
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def verdict(self, failure: Failure, chance: float) -> Verdict:
        """Return what happens to the sample."""
        if failure.attempt > self.attempts:
            return action_of(self.then, "then").verdict(failure, chance)
        doubled_s = self.wait_s * 2.0 ** min(failure.attempt - 1, _MOST_DOUBLINGS)
        return Verdict("retry", wait_s=min(self.longest_s, doubled_s) * (0.5 + chance))


ActionObject: TypeAlias = Raise | Skip | Retry | Replace
Action: TypeAlias = ActionObject | Literal["raise", "skip", "retry", "replace"]

_BY_NAME: dict[str, type[ActionObject]] = {"raise": Raise, "skip": Skip, "retry": Retry, "replace": Replace}


def action_of(value: object, name: str) -> ActionObject:
    """Return the action that a value stands for; `name` describes the value to the user.

    Raises:
        BadOption: it stands for none.

    Example:
        >>> action_of("skip", "otherwise")
        Skip()
    """
    action = find_action(value)
    if action is not None:
        return action
    raise BadOption(f"{name}: {value!r:.200} is not an action. {ALLOWED}")


def find_action(value: object) -> ActionObject | None:
    """Return the action that a value stands for, or None.

    Example:
        >>> find_action("retry") == Retry(), find_action("ignore") is None
        (True, True)
    """
    if isinstance(value, (Raise, Skip, Retry, Replace)):
        return value
    return _BY_NAME[value]() if isinstance(value, str) and value in _BY_NAME else None
