"""The contract of targets, which prepare batches for a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Target(ABC):
    """Gets batches ready for the training loop, and hands them over."""

    ahead: int = 2
    """Batches that are got ready before the training loop asks for them, at most."""
    threads: int = 0
    """Threads that call `begin`; 0 if the training loop does so itself, because it costs next to nothing. May become
    more when a batch has shown that it does cost something."""

    # Any: batches of whatever structure, and what `begin` makes of them.
    @abstractmethod
    def begin(self, batch: Any) -> Any:
        """Begin what is to be done about a batch, without waiting for the device; returns what `deliver` needs."""

    @abstractmethod
    def deliver(self, begun: Any) -> Any:
        """Return the batch, in the thread of the training loop, without waiting for the device."""

    def close(self) -> None:  # noqa: B027  most targets have nothing to let go of
        """Nothing is begun any more."""
