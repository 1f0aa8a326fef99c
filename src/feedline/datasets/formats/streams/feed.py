"""Feeds: the sources of messages for a `StreamDataset`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any


@dataclass(frozen=True)
class Message:
    """One message, and how to acknowledge it.

    Example:
        >>> from feedline.datasets import Message
        >>> Message({"x": 3}, receipt=7).payload
        {'x': 3}
    """

    payload: Any
    """The content of the message, of any type."""
    receipt: Any
    """Passed to `Feed.acknowledge`, perhaps in another process, so it must be picklable."""


class Feed(ABC):
    """Delivers messages, at least once each.

    A feed can be pickled, and opens nothing before it is used. Every iteration has a copy that subscribes, and the
    training process has one that acknowledges. All methods of a copy are called from one thread.

    Example:
        >>> from feedline.datasets import Feed, Message, StreamDataset
        >>> class Letters(Feed):
        ...     def subscribe(self, number, count):
        ...         self.waiting = list("abcd")[number::count]
        ...     def receive(self, most, wait_s):
        ...         taken, self.waiting = self.waiting[:most], self.waiting[most:]
        ...         return [Message(letter, receipt=letter) for letter in taken]
        ...     def acknowledge(self, receipts): ...
        ...     def close(self): ...
        >>> list(StreamDataset(Letters(), idle_s=0))
        ['a', 'b', 'c', 'd']
    """

    @abstractmethod
    def subscribe(self, number: int, count: int) -> None:
        """Start as one of several equal readers, which together receive every message.

        Messages that were received before and never acknowledged arrive again, here or at another reader.

        Args:
            number: the number of this reader, from 0.
            count: the number of readers.
        """

    @abstractmethod
    def receive(self, most: int, wait_s: float) -> list[Message]:
        """Return messages, at least one if there are any.

        Args:
            most: maximum number of messages.
            wait_s: how long to wait for the first message; after that, return an empty list.
        """

    # Any: a sample of any form.
    def decode(self, message: Message) -> Any:
        """Return the sample of a message: its payload by default.

        It is separate from `receive` so that an exception here concerns one sample only.
        """
        return message.payload

    @abstractmethod
    def acknowledge(self, receipts: list[object]) -> None:
        """Mark messages as done, so that they do not arrive again. Called without `subscribe`, in another process."""

    @abstractmethod
    def close(self) -> None:
        """Close connections that this process has opened. May be called twice."""

    # Any: a receipt of the feed's own.
    def seek(self, receipt: Any) -> None:
        """Continue after the message with this receipt. Called after `subscribe`, to resume from a state.

        Override it if the feed knows positions: the state of a reader is then the receipt of the last message that it
        returned, which has to be a plain value (after JSON, a tuple is a list). Otherwise states hold no position, and
        the server has to know what was acknowledged.
        """
        raise NotImplementedError


# object: an option from the user.
def is_duration(value: object) -> bool:
    """True for a number of seconds to wait."""
    return isinstance(value, Real) and float(value) >= 0
