"""`StreamDataset`: the messages of a feed as samples, acknowledged when their batch was consumed."""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from feedline.abc.source import Acknowledged, Repeatable
from feedline.abc.stateful import check_format
from feedline.datasets.formats.streams.feed import Feed, Message, is_duration
from feedline.datasets.framework.passes import PartedStream
from feedline.datasets.framework.source import Transform, checked_transform
from feedline.errors import BadOption, BadState
from feedline.system.handle import Handle
from feedline.system.ranks import rank_if_known
from feedline.types import State

_WAIT_S = 0.2
"""Duration of one wait for messages, and so how long it may take to notice that the dataset was closed."""

_MOST = 64
"""Maximum number of messages to request at once. More would wait here unread while other workers are idle."""


class StreamDataset(PartedStream, Acknowledged):
    r"""An iterable dataset of messages in the order of arrival. Without `idle_s` it is endless.

    Each worker is a separate reader: every message goes to one of them. A message is acknowledged after the training
    loop has consumed its batch, that is, when it requests the next one. If the program or a worker crashes before that,
    the message arrives again: nothing is lost, and a few arrive twice. For torch it is an `IterableDataset` if torch
    was imported before the dataset was created.

    Args:
        feed: the source of messages: `RedisStream`, or a `Feed` of your own.
        transform: turns a message into a sample.
        idle_s: end the iteration when no message has arrived for this long; None to wait forever.
        acknowledge: "consumed", as above, for feedline's loaders; or "received", for others: a message is acknowledged
            when it is taken from the feed, and lost in a crash.

    Example:
        >>> import feedline
        >>> from feedline.datasets import Feed, Message, StreamDataset
        >>> class Numbers(Feed):
        ...     def subscribe(self, number, count):
        ...         self.waiting = list(range(4))[number::count]
        ...     def receive(self, most, wait_s):
        ...         taken, self.waiting = self.waiting[:most], self.waiting[most:]
        ...         return [Message(number, receipt=number) for number in taken]
        ...     def acknowledge(self, receipts):
        ...         print("done with", receipts)
        ...     def close(self): ...
        >>> [batch.tolist() for batch in feedline.Loader(StreamDataset(Numbers(), idle_s=0), 2)]
        done with [0, 1]
        done with [2, 3]
        [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        feed: Feed,
        *,
        transform: Transform | None = None,
        idle_s: float | None = None,
        acknowledge: str = "consumed",
    ) -> None:
        if not isinstance(feed, Feed):  # do not show it: an address may contain a password
            raise BadOption(f"feed= is a {type(feed).__name__}. Pass a RedisStream, or a feedline.datasets.Feed.")
        if idle_s is not None and not is_duration(idle_s):
            raise BadOption(f"idle_s={idle_s!r} is not a duration. Pass seconds, or None to wait forever.")
        if acknowledge not in ("consumed", "received"):
            raise BadOption(f"acknowledge={acknowledge!r} is neither 'consumed' nor 'received'.")
        super().__init__()
        self.feed = feed
        self.transform = checked_transform(transform)
        self.idle_s = idle_s
        self._waits = acknowledge == "consumed"
        self._messages: _Messages | None = None
        # Whether the dataset was closed: shared by its copies in one process, and not carried to other processes.
        self._closed = Handle(threading.Event, threading.Event.clear)

    def __iter__(self) -> Iterator[Any]:
        (worker, workers), (rank, ranks) = self._place()
        self._closed.get().clear()
        self._messages = _Messages(self, rank * workers + worker, ranks * workers)
        return self._messages

    def set_ranks(self, rank: int, count: int) -> None:
        if (rank_if_known() or self._ranks or (0, 1)) != (rank, count):
            raise BadOption(
                "A queue delivers each message once, so ranks that share their batches cannot all read it. Read it on "
                "one rank of each group, and broadcast the batches from there."
            )
        super().set_ranks(rank, count)

    def take_receipts(self) -> list[object] | None:
        if self._messages is None or not self._waits:
            return None
        return self._messages.take_receipts() or None

    def put_back(self) -> None:
        if self._messages is not None:
            self._messages.put_back()

    def acknowledge(self, receipts: list[object]) -> None:
        self.feed.acknowledge(receipts)

    def close(self) -> None:
        """End the iterations of this process, including those of worker threads, and close its connections."""
        self._closed.get().set()
        self.feed.close()

    def __repr__(self) -> str:
        end = "" if self.idle_s is None else f", idle_s={self.idle_s}"
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        return f"StreamDataset({self.feed!r}{end}{transform})"


class _Messages(Repeatable, Iterator[Any]):
    """The messages of one reader."""

    def __init__(self, dataset: StreamDataset, number: int, count: int) -> None:
        self._dataset = dataset
        # A copy: threads share the dataset's feed, and readers must not share a connection.
        self._feed = copy.deepcopy(dataset.feed)
        weakref.finalize(self, self._feed.close)
        self._ready: deque[Message] = deque()
        self._handed: list[tuple[Message, bool]] = []
        """Messages returned since receipts were last taken, and whether decoding or transforming them failed."""
        self._failed: Message | None = None
        """The last message, if it failed."""
        self._last: object = None
        """The receipt of the last message returned."""
        self._last_taken: object = None
        """The receipt of the last message returned before receipts were last taken."""
        self._feed.subscribe(number, count)

    def __next__(self) -> Any:
        self._failed = None
        message = self._next_message()
        self._last = message.receipt
        dataset = self._dataset
        if dataset._waits:
            self._handed.append((message, False))
        else:
            self._feed.acknowledge([message.receipt])
        try:
            if dataset.transform is None:
                return self._feed.decode(message)
            # A transform may change its argument, and the message may have to be returned again.
            return dataset.transform(self._feed.decode(replace(message, payload=_copied(message.payload))))
        except Exception:  # not interrupts, which are not the message's fault
            self._failed = message
            if dataset._waits:
                self._handed[-1] = (message, True)
            raise

    def try_again(self) -> bool:
        message, self._failed = self._failed, None
        if message is not None:
            self._ready.appendleft(message)
            if self._dataset._waits:
                self._handed.pop()
        return True  # if no message failed, none was received, and none is lost

    def take_receipts(self) -> list[object]:
        """Return the receipts of the messages that were returned since the last call."""
        handed, self._handed = self._handed, []
        self._last_taken = self._last
        return [message.receipt for message, _ in handed]

    def put_back(self) -> None:
        """Queue the messages returned since receipts were last taken to be returned again, except those that failed."""
        if not self._dataset._waits:
            return
        self._ready.extendleft(message for message, has_failed in reversed(self._handed) if not has_failed)
        self._handed = [(message, has_failed) for message, has_failed in self._handed if has_failed]
        self._last = self._last_taken

    def _next_message(self) -> Message:
        idle_s, closed = self._dataset.idle_s, self._dataset._closed.get()
        since_s = time.monotonic()
        while not self._ready:
            if closed.is_set():
                return self._end()
            wait_s = _WAIT_S if idle_s is None else min(_WAIT_S, max(0.0, since_s + idle_s - time.monotonic()))
            self._ready.extend(self._feed.receive(_MOST, wait_s))
            if not self._ready and idle_s is not None and time.monotonic() >= since_s + idle_s:
                return self._end()
        return self._ready.popleft()

    def _end(self) -> NoReturn:
        self._feed.close()
        raise StopIteration

    def state_dict(self) -> State:
        """Return the position of the reader: after the last message that it returned."""
        return {"after": self._last if type(self._feed).seek is not Feed.seek else None}

    # object: a state may come from anywhere.
    def load_state_dict(self, state: object) -> None:
        """Continue at the position of a state. Raises BadState: it is not one of such a reader."""
        if isinstance(state, dict):
            check_format(state, "a reader of messages")
        if not isinstance(state, dict) or state.keys() != {"after"}:
            raise BadState(
                f"This is not the state of a reader of messages: {state!r:.200} Use the dataset that the state was "
                "saved with, or begin without the state."
            )
        if state["after"] is not None:
            self._last = self._last_taken = state["after"]
            self._feed.seek(state["after"])


def _copied(payload: object) -> object:
    """Return a copy of a payload, or the payload itself if it cannot be copied, for example a connection."""
    try:
        return copy.deepcopy(payload)
    except (TypeError, copy.Error):
        return payload
