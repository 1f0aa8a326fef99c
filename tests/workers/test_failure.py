"""How exceptions are sent from a worker to the training process."""

from __future__ import annotations

import threading
import traceback
from typing import Any

import pytest

from feedline.system.failures import WorkerTraceback, add_note
from feedline.workers.failure import pack_failure, unpack_failure


class TwoArguments(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class WithLock(ValueError):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Liar(Exception):
    """Unpickles into something else."""

    def __reduce__(self) -> Any:
        return str, ("not an exception",)


class Bomb(Exception):
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    raise OSError("boom")


def cross(exc: BaseException, where: str = "in DataLoader worker process 3") -> BaseException:
    try:
        raise exc
    except BaseException as raised:
        return unpack_failure(pack_failure(raised, where))


@pytest.mark.parametrize("exc", [ValueError("a"), KeyError("k"), OSError(2, "gone", "file"), StopIteration(4)])
def test_built_in_exceptions_keep_their_arguments(exc: BaseException) -> None:
    arrived = cross(exc)
    assert type(arrived) is type(exc)
    assert arrived.args == exc.args
    assert str(arrived) == str(exc)


@pytest.mark.parametrize("exc", [WithLock("held"), TwoArguments(4, "bad")])
def test_an_unpicklable_exception_keeps_its_type_where_possible(exc: Exception) -> None:
    arrived = cross(exc)
    text = str(arrived)
    assert type(arrived) is (type(exc) if isinstance(exc, WithLock) else RuntimeError)
    assert str(exc) in text
    assert "worker process 3" in text


@pytest.mark.parametrize("exc", [KeywordOnly(code=3), Liar("lied"), Bomb("ticking")])
def test_an_exception_that_cannot_be_rebuilt_keeps_its_name_and_traceback(exc: Exception) -> None:
    arrived = cross(exc)
    assert isinstance(arrived, Exception)
    assert type(exc).__name__ in str(arrived)
    assert "test_failure.py" in str(arrived)


def test_the_traceback_of_the_worker_is_the_cause() -> None:
    arrived = cross(ValueError("torn"))
    shown = "".join(traceback.format_exception(arrived))
    assert "in cross" in shown
    assert "raise exc" in shown
    assert shown.count('"""') == 2
    assert type(arrived.__cause__) is WorkerTraceback


def test_notes_of_the_user_are_kept() -> None:
    exc: Any = ValueError("torn")
    add_note(exc, "sample 4")
    arrived: Any = cross(exc)
    assert arrived.__notes__[0] == "sample 4"
    assert len(arrived.__notes__) == 2
