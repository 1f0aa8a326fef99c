"""`RedisStream`: a stream of a Redis server, read by a consumer group.

For each consumer, the server keeps the messages that it has received and not acknowledged (its pending messages). A
consumer first requests its own pending messages, left over from a run that crashed, then new ones, and from time to
time those of consumers that have been idle for long (XAUTOCLAIM).

When the connection breaks, a response may be lost although the server counts its messages as delivered. So after
reconnecting, the consumer requests its pending messages after the last one that arrived. Messages of a lost response
to XAUTOCLAIM may be older than that one; they arrive when they have been pending for `claim_idle_s` once more.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from operator import methodcaller
from typing import Any, TypeVar

from feedline.datasets.formats.streams.feed import Feed, Message, is_duration
from feedline.datasets.storage.addresses import shown_url, without_secrets
from feedline.errors import BadOption, SourceError
from feedline.system.failures import words
from feedline.system.handle import Handle
from feedline.system.optional import require

T = TypeVar("T")

_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.05, 2.0
"""Pause between attempts to reach the server; doubled each time."""


class RedisStream(Feed):
    """Reads a Redis stream (server 6.2 or later) as a consumer group, whose readers share its messages.

    A sample is a dict of the message's fields: names as strings, values as bytes.

    Args:
        url: the URL of the server, such as "redis://localhost:6379/0", "rediss://..." or "unix:///path/to.sock".
        stream: the key of the stream; created if it does not exist.
        group: the consumer group; created if it does not exist. Each group receives all messages.
        consumer: the name of this program in the group; its readers are `consumer-0`, `consumer-1`, ... With the same
            name after a crash, pending messages arrive at once. Concurrent programs need different names.
        start: where a new group begins: "0" for all messages in the stream, "$" for those from now on, or an id.
        claim_idle_s: take over pending messages of other readers that are older than this. It must be longer than a
            batch may take from receipt to the next step, or messages arrive twice.
        retry_s: how long to retry an unreachable server before raising an error.

    Raises:
        MissingExtra: the package `redis` is not installed; raised at first use.
        SourceError: the server cannot be reached, or refuses a request.

    Example:
        >>> from feedline.datasets import RedisStream, StreamDataset
        >>> dataset = StreamDataset(RedisStream("redis://localhost:6379/0", "events", group="training"))
        >>> dataset.__class__.__name__  # it connects when an iteration begins
        'StreamDataset'
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
        for name, value in (("url", url), ("stream", stream), ("group", group), ("consumer", consumer)):
            if type(value) is not str or value == "":
                # Do not show the value: a URL may contain a password.
                raise BadOption(f"{name}= must be a string that is not empty, but a {type(value).__name__} was given.")
        for name, seconds in (("claim_idle_s", claim_idle_s), ("retry_s", retry_s)):
            if not is_duration(seconds):
                raise BadOption(f"{name}={seconds!r} is not a duration in seconds.")
        self._url = url
        self._stream = stream
        self._group = group
        self._consumer = consumer
        self._start = start
        self._claim_idle_s = claim_idle_s
        self._retry_s = retry_s
        self._client: Handle[Any] = Handle(functools.partial(_connected, url), methodcaller("close"))

    def subscribe(self, number: int, count: int) -> None:
        self._name = f"{self._consumer}-{number}"
        self._reads_pending = True
        self._cursor = "0"
        """The id of the last message that arrived. Pending messages have lower ids than new ones."""
        self._claims_at_s, self._claims_from = 0.0, "0-0"
        redis = require("redis", extra="redis", purpose="RedisStream")

        def make(client: Any) -> None:
            try:
                client.xgroup_create(self._stream, self._group, id=self._start, mkstream=True)
            except redis.ResponseError as exc:
                if "BUSYGROUP" not in str(exc):  # the group exists already
                    raise

        self._do(make)

    def receive(self, most: int, wait_s: float) -> list[Message]:
        cursor = self._cursor
        try:
            while True:
                try:
                    return self._receive(most, wait_s)
                except _AnswerLost:  # the server counts its messages as delivered: they are pending now
                    self._reads_pending = True
                    self._do(lambda client: client.ping())
        except BaseException:  # for example Ctrl-C: the caller does not get what arrived
            self._cursor, self._reads_pending = cursor, True
            raise

    def _receive(self, most: int, wait_s: float) -> list[Message]:
        while self._reads_pending:
            entries = self._read(self._cursor, most, None)
            self._reads_pending = bool(entries)
            if messages := self._messages(entries):
                return messages
        block_ms = max(1, int(wait_s * 1000)) if wait_s > 0 else None
        return self._claimed(most) or self._messages(self._read(">", most, block_ms))

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
        if self._claims_from == "0-0":  # the scan is complete
            self._claims_at_s = time.monotonic() + max(0.1, self._claim_idle_s / 4)
        return self._messages(found[1])

    def _read(self, beyond: str, most: int, block_ms: int | None) -> list[object]:
        """Return entries after a position: new ones after ">", pending ones after an id."""
        answer = self._do(
            lambda client: client.xreadgroup(
                self._group, self._name, {self._stream: beyond}, count=most, block=block_ms
            ),
            reads=True,
        )
        if not answer:
            return []
        entries = list(answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))[0])
        if entries:
            self._cursor = _text(entries[-1][0])
        return entries

    def _messages(self, entries: list[Any]) -> list[Message]:
        gone: list[object] = [_text(number) for number, fields in entries if not fields]
        if gone:  # deleted from the stream while they were pending: there is nothing to deliver
            self.acknowledge(gone)
        return [
            Message({_text(name): value for name, value in fields.items()}, _text(number))
            for number, fields in entries
            if fields
        ]

    def acknowledge(self, receipts: list[object]) -> None:
        self._do(lambda client: client.xack(self._stream, self._group, *receipts))

    def _do(self, act: Callable[[Any], T], *, reads: bool = False) -> T:
        """Send a request to the server; retry for up to `retry_s` while it cannot be reached.

        A read (`reads`) raises _AnswerLost instead: a retry would continue after the messages of the lost response.
        """
        redis = require("redis", extra="redis", purpose="RedisStream")
        deadline_s, pause_s = time.monotonic() + self._retry_s, _LEAST_PAUSE_S
        while True:
            try:
                return act(self._client.get())
            except redis.AuthenticationError as exc:
                raise SourceError(
                    f"The Redis server at {self._redacted_url} refused the request: {self._redacted(exc)}."
                ) from self._cause(exc)
            except (redis.ConnectionError, redis.TimeoutError) as exc:
                self._client.close()
                if reads:
                    raise _AnswerLost from exc
                if time.monotonic() + pause_s > deadline_s:
                    raise SourceError(
                        f"The Redis server at {self._redacted_url} cannot be reached, after {self._retry_s:g} seconds "
                        f"of retries: {self._redacted(exc)}. Nothing is lost: messages that were not acknowledged "
                        "arrive again."
                    ) from self._cause(exc)
                time.sleep(pause_s)
                pause_s = min(_MOST_PAUSE_S, 2 * pause_s)
            except redis.ResponseError as exc:
                raise SourceError(
                    f"The Redis server at {self._redacted_url} refuses to serve group {self._group!r} of stream "
                    f"{self._stream!r}: {self._redacted(exc)}."
                ) from self._cause(exc)

    @property
    def _redacted_url(self) -> str:
        """The URL without its secrets."""
        return shown_url(self._url)

    def _redacted(self, exc: Exception) -> str:
        """Return the message of the server or its driver without secrets: it may quote the URL."""
        return without_secrets(words(exc), self._url)

    def _cause(self, exc: Exception) -> Exception | None:
        return exc if self._redacted(exc) == words(exc) else None

    def close(self) -> None:
        self._client.close()

    def __repr__(self) -> str:
        return f"RedisStream({self._redacted_url!r}, {self._stream!r}, group={self._group!r})"


class _AnswerLost(Exception):
    """The connection broke, possibly while the server was responding."""


def _connected(url: str) -> object:
    redis = require("redis", extra="redis", purpose="RedisStream")
    # No retries by the driver: a lost response must be noticed.
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    try:
        client = redis.Redis.from_url(url, socket_timeout=30, socket_connect_timeout=10, retry=retry)
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # does not connect yet, but rejects unknown options
        return client
    except (TypeError, ValueError):  # the message may contain a part of the password
        raise BadOption(
            f"{shown_url(url)!r} is not the URL of a Redis server, such as redis://localhost:6379/0. In a password, "
            "write %40 for @, %3A for : and %2F for /."
        ) from None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
