"""Train on the messages of a Redis stream (server 6.2 or later), read by a consumer group.

    pip install redis
    python examples/redis_stream.py redis://localhost:6379/0 events

`RedisStream` is a feed of your own over `StreamDataset`: copy it, and change what a message is.

The server remembers for each consumer which messages it has got and not acknowledged (its pending messages). A consumer
first asks for its own pending ones, left over from a run that crashed, then for new ones, and from time to time for
those of consumers that have been silent for long (XAUTOCLAIM).

When the connection breaks, an answer may be lost on its way: the server counts its messages as delivered. So after a
reconnection the consumer asks for its pending messages beyond the last one that arrived.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis

import feedline
from feedline.datasets import StreamDataset
from feedline.datasets.streams import Feed, Message
from feedline.errors import BadOption, SourceError

T = TypeVar("T")

LEAST_PAUSE_S, MOST_PAUSE_S = 0.05, 2.0  # between attempts to reach the server: doubled each time


class RedisStream(Feed):
    """Reads a Redis stream as a consumer group, so that readers share out its messages.

    A sample is a dict of the message's fields: names as strings, values as bytes.

    Args:
        url: of the server, such as "redis://localhost:6379/0", "rediss://..." or "unix:///path/to.sock".
        stream: the key of the stream; made if it is not there.
        group: the consumer group; made if it is not there. Groups each get all messages.
        consumer: what this program is called in the group; its readers are `consumer-0`, `consumer-1`, ... Give the
            same name after a crash, and what was pending comes at once. Programs that run at the same time need
            different names.
        start: where a new group begins: "0" for all that is in the stream, "$" for what comes from now on, or an id.
        claim_idle_s: take over pending messages of other readers that are older than this. Longer than a batch may take
            from receipt to the next step, or messages come twice.
        retry_s: how long to try to reach a server that is away before that is an error.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        group: str = "feedline",
        consumer: str = "feedline",
        start: str = "0",
        claim_idle_s: float = 600.0,
        retry_s: float = 60.0,
    ) -> None:
        self._url = url
        self._stream = stream
        self._group = group
        self._consumer = consumer
        self._start = start
        self._claim_idle_s = claim_idle_s
        self._retry_s = retry_s
        self._client: Any = None  # redis-py's client, of this process

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}  # every copy, and every worker, connects by itself

    def subscribe(self, number: int, count: int) -> None:
        self._name = f"{self._consumer}-{number}"
        self._reads_pending = True
        self._cursor = "0"  # the last message that arrived: pending ones have lower ids than new ones
        self._claims_at_s, self._claims_from = 0.0, "0-0"

        def make(client: Any) -> None:
            try:
                client.xgroup_create(self._stream, self._group, id=self._start, mkstream=True)
            except redis.ResponseError as exc:
                if "BUSYGROUP" not in str(exc):  # it is there already
                    raise

        self._do(make)

    def receive(self, most: int, wait_s: float) -> list[Message]:
        while True:
            try:
                return self._pending(most) or self._claimed(most) or self._new(most, wait_s)
            except _AnswerLost:  # the server takes its messages for delivered: they are pending now
                self._reads_pending = True
                self._do(lambda client: client.ping())

    def _pending(self, most: int) -> list[Message]:
        entries = self._read(self._cursor, most, None) if self._reads_pending else []
        if not entries:
            self._reads_pending = False
            return []
        self._cursor = _text(entries[-1][0])
        return self._messages(entries)

    def _claimed(self, most: int) -> list[Message]:
        if time.monotonic() < self._claims_at_s:
            return []
        idle_ms = int(self._claim_idle_s * 1000)
        found = self._do(
            lambda client: client.xautoclaim(
                self._stream, self._group, self._name, idle_ms, start_id=self._claims_from, count=most
            )
        )
        self._claims_from = _text(found[0])
        if self._claims_from == "0-0":  # all were looked at
            self._claims_at_s = time.monotonic() + max(0.1, self._claim_idle_s / 4)
        return self._messages(found[1])

    def _new(self, most: int, wait_s: float) -> list[Message]:
        entries = self._read(">", most, max(1, int(wait_s * 1000)) if wait_s > 0 else None)
        if entries:
            self._cursor = _text(entries[-1][0])
        return self._messages(entries)

    def _read(self, beyond: str, most: int, block_ms: int | None) -> list[Any]:
        """Return entries: new ones beyond ">", pending ones beyond an id."""
        answer = self._do(
            lambda client: client.xreadgroup(
                self._group, self._name, {self._stream: beyond}, count=most, block=block_ms
            ),
            reads=True,
        )
        if not answer:
            return []
        return list(answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))[0])

    def _messages(self, entries: list[Any]) -> list[Message]:
        gone = [_text(number) for number, fields in entries if not fields]
        if gone:  # deleted from the stream while they were pending: there is nothing to deliver
            self.acknowledge(gone)
        return [
            Message({_text(name): value for name, value in fields.items()}, _text(number))
            for number, fields in entries
            if fields
        ]

    def acknowledge(self, receipts: list[Any]) -> None:
        self._do(lambda client: client.xack(self._stream, self._group, *receipts))

    def _do(self, act: Callable[[Any], T], *, reads: bool = False) -> T:
        """Ask the server something; if it cannot be reached, again, for as long as that is allowed.

        Reading is not repeated: it would go on after the messages of an answer that was lost.
        """
        deadline_s, pause_s = time.monotonic() + self._retry_s, LEAST_PAUSE_S
        while True:
            try:
                return act(self._connected())
            except (redis.ConnectionError, redis.TimeoutError) as exc:
                self.close()
                refused = isinstance(exc, redis.AuthenticationError)
                if reads and not refused:
                    raise _AnswerLost from exc
                if refused or time.monotonic() + pause_s > deadline_s:
                    # Not the words of the driver, which may quote what it was given.
                    raise SourceError(
                        f"The Redis server of {self!r} cannot be reached, or refuses to log in: {type(exc).__name__}. "
                        "Nothing is lost: what was not acknowledged comes again."
                    ) from None
                time.sleep(pause_s)
                pause_s = min(MOST_PAUSE_S, 2 * pause_s)
            except redis.ResponseError as exc:
                raise SourceError(f"The Redis server refuses to serve {self!r}: {exc}.") from exc

    def _connected(self) -> Any:
        if self._client is None:
            # No retries of its own: a lost answer has to be noticed.
            retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
            try:
                self._client = redis.Redis.from_url(
                    self._url, socket_timeout=30, socket_connect_timeout=10, retry=retry
                )
            except ValueError:  # its text may hold a part of a password
                raise BadOption("The URL is none of a Redis server, such as redis://localhost:6379/0.") from None
        return self._client

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __repr__(self) -> str:
        return f"RedisStream({self._stream!r}, group={self._group!r})"  # not the URL: it may hold a password


class _AnswerLost(Exception):
    """The connection broke while the server may have been answering."""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    url, stream = sys.argv[1:]
    dataset = StreamDataset(RedisStream(url, stream, consumer=f"example-{os.getpid()}"), idle_s=5)
    for batch in feedline.Loader(dataset, 8, workers=2, collate=list):
        print(batch)
