from __future__ import annotations

from typing import Any

import pytest

from feedline.datasets.formats.sql.address import Address
from feedline.datasets.formats.sql.database import Connection, Postgres
from feedline.datasets.formats.sql.query import Session
from feedline.errors import CorruptSource, SourceError


class Broken(Exception):
    """The error that the driver raises."""


class Connected:
    closed = False

    def close(self) -> None:
        self.closed = True


class Flaky(Postgres):
    """An error that says so loses the connection."""

    errors = (Broken,)

    def __init__(self) -> None:
        super().__init__(Address("postgresql://ada:s3cret@host/people"))
        self.opened: list[Connected] = []
        self.refuses = False

    def connect(self) -> Connection:
        if self.refuses:
            raise Broken("no way in with s3cret")
        self.opened.append(Connected())
        return self.opened[-1]

    def is_lost(self, connection: Connection, exc: Exception) -> bool:
        return connection is None or "lost" in str(exc)

    def is_corrupt(self, exc: Exception) -> bool:
        return "malformed" in str(exc)


@pytest.fixture
def flaky() -> Flaky:
    return Flaky()


def raising(text: str, times: int = 1000) -> Any:
    left = iter([True] * times)

    def act(connection: Connection) -> Connection:
        if next(left, False):
            raise Broken(text)
        return connection

    return act


def test_a_lost_connection_is_reopened_a_few_times(flaky: Flaky) -> None:
    pauses: list[float] = []
    session = Session(flaky, pauses.append)
    assert [session.ask(raising("", 0), "asking") for _ in range(2)] == [flaky.opened[0]] * 2
    assert session.ask(raising("it is lost", 2), "asking") is flaky.opened[2]
    assert [one.closed for one in flaky.opened] == [True, True, False]
    assert pauses == pytest.approx([0.2, 1.0])
    with pytest.raises(SourceError, match="lost while asking, and 3 further attempts did not help"):
        session.ask(raising("it is lost"), "asking")
    assert pauses == pytest.approx([0.2, 1.0, 0.2, 1.0, 5.0])
    flaky.refuses = True
    with pytest.raises(SourceError, match="3 further attempts"):
        session.ask(raising("", 0), "asking")
    assert all(one.closed for one in flaky.opened)


@pytest.mark.parametrize(("text", "kind"), [("syntax error", SourceError), ("malformed", CorruptSource)])
def test_a_query_that_fails_is_not_repeated(flaky: Flaky, text: str, kind: type[Exception]) -> None:
    session = Session(flaky, lambda pause: pytest.fail("it was repeated"))
    with pytest.raises(kind, match=text):
        session.ask(raising(text), "asking")
    assert len(flaky.opened) == 1


def test_only_a_connection_that_succeeded_before_is_retried(flaky: Flaky) -> None:
    flaky.refuses = True
    pauses: list[float] = []
    with pytest.raises(SourceError, match="could not be reached") as caught:
        Session(flaky, pauses.append).ask(raising("", 0), "asking")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None  # it contains the password
    assert not pauses
    with pytest.raises(SourceError, match="3 further attempts"):
        Session(flaky, pauses.append).ask(raising("", 0), "asking", is_known=True)
    assert len(pauses) == 3
