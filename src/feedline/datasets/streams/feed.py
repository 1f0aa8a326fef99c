"""Feeds: where the messages of a `StreamDataset` come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any


@dataclass(frozen=True)
class Message:
    """One message, and how to acknowledge it."""

    payload: Any
    """What it carries. Any: whatever the feed carries."""
    receipt: Any
    """Handed back to `Feed.acknowledge`, perhaps in another process; picklable."""


class Feed(ABC):
    """Delivers messages, at least once each.

    A feed can be pickled, and opens nothing before it is used: every iteration has a copy that subscribes, and the
    training process one that acknowledges. All methods of a copy are called from one thread.
    """

    @abstractmethod
    def subscribe(self, number: int, count: int) -> None:
        """Begin, as one of several equal readers. Together they get every message.

        What was received before and never acknowledged comes again, here or from another of them.

        Args:
            number: which of them this is, from 0.
            count: how many there are.
        """

    @abstractmethod
    def receive(self, most: int, wait_s: float) -> list[Message]:
        """Return messages, at least one if there is any.

        Args:
            most: how many at most.
            wait_s: how long to wait for the first; then the list is empty.
        """

    # Any: a sample of any form.
    def decode(self, message: Message) -> Any:
        """Return the sample that a message carries; its payload, unless the feed knows better.

        Not part of `receive`: an exception here is about one sample.
        """
        return message.payload

    @abstractmethod
    def acknowledge(self, receipts: list[Any]) -> None:
        """Say that messages are done with and need not come again. Called without `subscribe`, in another process."""

    @abstractmethod
    def close(self) -> None:
        """Close what this process has opened. May be called twice."""

    # Any: plain values.
    def state(self, last: Any) -> Any:
        """Return where a reader is that has handed out the message of this receipt last; None if the server knows.

        The receipt is None if no message was handed out yet.
        """
        return None

    def restore(self, state: Any) -> None:
        """Go on where a state was taken, if that is not None; called after `subscribe`."""
        raise NotImplementedError(f"{type(self).__name__} has a state, and no method to restore it.")


# Any: an option as the user gave it.
def is_duration(value: Any) -> bool:
    """True for seconds that can be waited."""
    return isinstance(value, Real) and float(value) >= 0
