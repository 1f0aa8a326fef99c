"""Reading a range although connections drop: what has arrived is kept, and the rest is asked for again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from feedline.datasets.source import checked_count
from feedline.errors import BadOption, SourceError

_PROGRESS = 1 << 18
"""Bytes that have to arrive for a try to count as a success, after which all retries are there again. A guess."""


class Transient(Exception):
    """Something that may be better when it is tried again; its text says what."""


@dataclass(frozen=True)
class Patience:
    """How often and how long to try."""

    retries: int = 5
    """Tries after the first, without progress in between."""
    pause_s: float = 0.1
    """Before the second try; twice as long before each one after it, give or take half."""
    timeout_s: float = 60.0
    """How long nothing may arrive."""

    def __post_init__(self) -> None:
        checked_count("retries", self.retries, 0)
        if not self.timeout_s > 0:
            raise BadOption(f"timeout_s={self.timeout_s!r} is not a positive number of seconds.")

    def wait(self, attempt: int) -> None:
        """Wait after the so-manieth failure."""
        # Not from a seeded generator: workers that failed together should not come back together.
        time.sleep(min(30.0, self.pause_s * 2 ** (attempt - 1)) * (0.5 + random.SystemRandom().random()))


def read_range(
    get: Callable[[int, int], Iterator[bytes]], start: int, stop: int, *, name: str, patience: Patience
) -> bytes:
    """Return the bytes from `start` to `stop`.

    Raises SourceError: it broke off more often than that.

    Args:
        get: yields pieces of a range as they arrive; raises Transient when it breaks off, any other exception when it
            is no use trying again.
        start: the first byte.
        stop: the byte after the last.
        name: what is read, for errors.
        patience: how often to try.
    """
    pieces: list[bytes] = []
    at, attempt, mark = start, 0, start
    while at < stop:
        try:
            for piece in get(at, stop):
                pieces.append(piece)
                at += len(piece)
            if at < stop:
                raise Transient("the connection ended early")
        except Transient as exc:
            if at - mark >= _PROGRESS:
                attempt = 0
            mark = at
            attempt += 1
            if attempt > patience.retries:
                tries = f"{attempt} times" if attempt > 1 else "once"
                raise SourceError(
                    f"{name} cannot be read at byte {at}: {exc} (tried {tries}). If the network or the server has "
                    "trouble now and then, a higher retries= bridges more of it."
                ) from exc
            patience.wait(attempt)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
