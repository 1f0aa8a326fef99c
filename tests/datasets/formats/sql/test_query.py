from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from feedline.datasets.formats.sql.address import Address
from feedline.datasets.formats.sql.database import Database, Rows
from feedline.datasets.formats.sql.query import Session
from feedline.errors import CorruptSource, SourceError


class Broken(Exception):
    """The error that the driver raises."""


class Flaky(Database):
    """Gives numbered connections; an error that says so loses the connection."""

    def __init__(self) -> None:
        super().__init__(Address("postgresql://ada:s3cret@host/people"))
        self.opened = 0
        self.closed: list[int] = []
        self.refuses = False

    def check(self) -> None:
        pass

    def connect(self) -> Any:
        if self.refuses:
            raise Broken("no way in with s3cret")
        self.opened += 1
        return self.opened

    def close(self, connection: Any) -> None:
        self.closed.append(connection)

    def describe(self, connection: Any, statement: str, parameters: Any) -> list[tuple[str, str]]:
        raise NotImplementedError

    def rows(self, connection: Any, statement: str, parameters: Any) -> Rows:
        raise NotImplementedError

    def stream(self, connection: Any, statement: str, parameters: Any, size: int) -> Iterator[Rows]:
        raise NotImplementedError

    def with_keys(self, keys: list[Any], column: str, parameters: Any) -> list[tuple[str, Any]]:
        raise NotImplementedError

    def after_key(self, key: Any, column: str, parameters: Any) -> tuple[str, Any]:
        raise NotImplementedError

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (Broken,)

    def is_lost(self, connection: Any, exc: Exception) -> bool:
        return connection is None or "lost" in str(exc)

    def is_corrupt(self, exc: Exception) -> bool:
        return "malformed" in str(exc)


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def flaky() -> Flaky:
    return Flaky()


def session_of(flaky: Flaky, pauses: list[float]) -> Session:
    return Session(flaky, pauses.append)


def raising(text: str, times: int = 1000) -> Any:
    left = iter([True] * times)

    def act(connection: int) -> int:
        if next(left, False):
            raise Broken(text)
        return connection

    return act


def itself(connection: object) -> object:
    return connection


def test_a_connection_is_reused(flaky: Flaky, pauses: list[float]) -> None:
    session = session_of(flaky, pauses)
    assert [session.ask(itself, "asking") for _ in range(3)] == [1, 1, 1]
    session.close()
    session.close()
    assert flaky.closed == [1]


def test_a_lost_connection_is_reopened(flaky: Flaky, pauses: list[float]) -> None:
    session = session_of(flaky, pauses)
    assert session.ask(raising("it is lost", 2), "asking") == 3
    assert flaky.closed == [1, 2]
    assert pauses == pytest.approx([0.2, 1.0])
    session.close()


def test_attempts_are_limited(flaky: Flaky, pauses: list[float]) -> None:
    session = session_of(flaky, pauses)
    with pytest.raises(SourceError, match="lost while asking, and 3 further attempts did not help"):
        session.ask(raising("it is lost"), "asking")
    assert flaky.opened == 4
    assert flaky.closed == [1, 2, 3, 4]
    assert pauses == pytest.approx([0.2, 1.0, 5.0])


def test_a_query_that_fails_is_not_repeated(flaky: Flaky, pauses: list[float]) -> None:
    session = session_of(flaky, pauses)
    with pytest.raises(SourceError, match="syntax error"):
        session.ask(raising("syntax error"), "asking")
    assert (flaky.opened, pauses) == (1, [])
    session.close()


def test_damage_has_its_own_error(flaky: Flaky, pauses: list[float]) -> None:
    session = session_of(flaky, pauses)
    with pytest.raises(CorruptSource):
        session.ask(raising("malformed"), "asking")
    session.close()


def test_a_first_connection_that_fails_is_not_retried(flaky: Flaky, pauses: list[float]) -> None:
    flaky.refuses = True
    with pytest.raises(SourceError, match="could not be reached") as caught:
        session_of(flaky, pauses).ask(lambda connection: connection, "asking")
    assert pauses == []
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None  # it contains the password


def test_a_failed_connection_is_retried_if_one_succeeded_elsewhere(flaky: Flaky, pauses: list[float]) -> None:
    flaky.refuses = True
    session = session_of(flaky, pauses)
    with pytest.raises(SourceError, match="3 further attempts"):
        session.ask(lambda connection: connection, "asking", is_known=True)
    assert len(pauses) == 3


def test_a_server_that_stays_down_fails_after_all_attempts(flaky: Flaky, pauses: list[float]) -> None:
    session = session_of(flaky, pauses)
    assert session.ask(itself, "asking") == 1
    session.close()
    flaky.refuses = True
    with pytest.raises(SourceError, match="3 further attempts"):
        session.ask(lambda connection: connection, "asking")
    assert len(pauses) == 3
