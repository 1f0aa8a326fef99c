"""The plan of an epoch: the contents of each batch, in order, from a given position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from feedline.types import Draw


class Plan(ABC):
    """An iterator over what batches consist of. Batches are numbered from 0, from where the plan was entered.

    Used from the consumer's thread only.
    """

    can_move = True
    """False if a task must stay with the worker it was given to."""
    goes_ahead = False
    """True if nobody can notice when batches are asked for: the order follows from numbers that only the plan knows."""
    asks_user = False
    """True if a sampler of the user's own is asked, which expects to be in the thread of the training loop."""

    def __iter__(self) -> Plan:
        return self

    @abstractmethod
    def __next__(self) -> Any:
        """Return what the next batch consists of."""

    @abstractmethod
    def draw(self, ordinal: int) -> Draw:
        """Return where the random numbers of a batch come from."""

    @abstractmethod
    def state(self, done: int) -> dict[str, Any]:
        """Return what is needed to enter the order after the first `done` batches of this plan, in plain values.

        "unit" says what is counted, "consumed" how many of these were gone through since the beginning of the epoch.
        """

    def last_state(self, done: int) -> dict[str, Any]:
        """Return `state(done)` of a plan that nobody goes on with, without drawing anything for it."""
        return self.state(done)

    def after(self) -> dict[str, Any]:
        """Return what the plan of the next epoch has to be given, once this one has been gone through."""
        return {}
