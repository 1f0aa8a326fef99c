"""The plan of an epoch: the contents of each batch, in order, from a given position."""

from __future__ import annotations

from abc import ABC, abstractmethod

from feedline.order.progress import Progress
from feedline.types import Draw


class Plan(ABC):
    """An iterator over the contents of batches. Batches are numbered from 0, from where the plan was entered.

    Used from the consumer's thread only.
    """

    goes_ahead = False
    """True if requesting batches early has no visible effect: the order follows from private numbers of the plan."""

    def __iter__(self) -> Plan:
        return self

    @abstractmethod
    def __next__(self) -> object:
        """Return the contents of the next batch."""

    @abstractmethod
    def draw(self, ordinal: int) -> Draw:
        """Return the source of random numbers for a batch."""

    def draw_after(self, progress: Progress) -> Draw:
        """Return the source of random numbers for what the consumer does with a batch, such as `device_transform=`.

        Args:
            progress: of the consumer, up to and including this batch.
        """
        return self.draw(progress.delivered + len(progress.early) - 1)

    @abstractmethod
    def state(self, done: int) -> dict[str, object]:
        """Return what is needed to enter the order after the first `done` batches of this plan, in plain values.

        "unit" is what is counted, "consumed" how many of these were consumed since the beginning of the epoch.
        """

    def last_state(self, done: int) -> dict[str, object]:
        """Return `state(done)` of a plan that is not continued, without drawing anything for it."""
        return self.state(done)

    def after(self) -> dict[str, object]:
        """Return what the plan of the next epoch needs, once this one is exhausted."""
        return {}
