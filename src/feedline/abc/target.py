"""The contract of targets, which prepare batches for a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Target(ABC):
    """Prepares batches for the training loop and delivers them."""

    ahead: int = 2
    """Maximum number of batches prepared before the training loop requests them."""
    threads: int = 0
    """Threads that call `begin`; 0 if the training loop calls it, because it costs almost nothing.

    May increase after a batch for which it was expensive.
    """

    # Any: batches of any structure, and the return value of `begin`.
    @abstractmethod
    def begin(self, batch: Any) -> object:
        """Start preparing a batch, without waiting for the device; returns what `deliver` needs."""

    @abstractmethod
    def deliver(self, begun: Any) -> object:
        """Return the batch, on the training loop's thread, without waiting for the device."""

    def close(self) -> None:  # noqa: B027  most targets have nothing to let go of
        """Stop: `begin` is not called any more."""
