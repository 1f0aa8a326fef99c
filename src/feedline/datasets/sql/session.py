"""A connection that is opened when it is needed, and again when it was lost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from feedline.datasets.sql.database import Database
from feedline.errors import CorruptSource, SourceError

T = TypeVar("T")

RETRIES = 3
"""How often a query is asked again when the connection was lost."""
PAUSE_S = 0.2
"""How long to wait before the first time; five times as long before each further one."""


class Session:
    """The connection of one thread.

    Args:
        database: what to connect to.
        pause: waits for some seconds.
    """

    def __init__(self, database: Database, pause: Callable[[float], Any] = time.sleep) -> None:
        self._database = database
        self._pause = pause
        self._connection: Any = None  # the driver's
        self._has_connected = False
        self._pid = os.getpid()

    def ask(self, act: Callable[[Any], T], doing: str, *, is_known: bool = False) -> T:
        """Do something with the connection that only reads; do it again with another one if it was lost.

        Args:
            act: what to do.
            doing: what that is, in words.
            is_known: another connection was had before, perhaps in another process.

        Raises:
            CorruptSource: the database is damaged.
            SourceError: it failed for another reason, or the connection could not be had again.
        """
        attempt = 0
        self._has_connected |= is_known
        while True:
            try:
                if self._connection is None:
                    self._connection = self._database.connect()
                    self._has_connected = True
                return act(self._connection)
            except self._database.errors as exc:
                lost = self._database.is_lost(self._connection, exc)
                if lost:
                    self.close()
                # Who was never let in is not let in at the third time: a wrong password had better be said at once.
                if not lost or not self._has_connected or attempt == RETRIES:
                    raise_for(self._database, exc, doing, attempt if lost else None)
            self._pause(PAUSE_S * 5**attempt)
            attempt += 1

    def __del__(self) -> None:
        # A connection that a fork inherited is its parent's: closing it would end the parent's session.
        if self.__dict__.get("_connection") is not None and self._pid == os.getpid():
            self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._database.close(connection)


def raise_for(database: Database, exc: Exception, doing: str, attempts: int | None) -> NoReturn:
    """Say what a driver's error means, without saying a password or who asked.

    Args:
        database: where it happened.
        exc: the driver's error.
        doing: while what.
        attempts: how often it was tried again, if the connection was lost; None if it was not.

    Raises:
        CorruptSource: the database is damaged.
        SourceError: always, otherwise.
    """
    why = database.address.hide(" ".join(str(exc).split())).rstrip(".?") or type(exc).__name__
    where = repr(database.address)
    # A driver's exception may hold the connection with all it was given; loggers show that.
    cause = exc if where == database.address.text else None
    if database.is_corrupt(exc):
        raise CorruptSource(
            f"{where} is damaged, or no such database: {why} (while {doing}). Restore it from a copy; text that is "
            "not UTF-8 can be selected as CAST(column AS BLOB)."
        ) from cause
    if attempts is not None:
        tried = f", and {attempts} further attempts did not help" if attempts else ""
        raise SourceError(
            f"{where} could not be reached, or was lost while {doing}{tried}: {why}. Is the server running, and does "
            "it let this user in?"
        ) from cause
    raise SourceError(f"{where} refused or failed while {doing}: {why}. {database.advice(exc)}") from cause
