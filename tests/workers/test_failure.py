"""How exceptions are sent from a worker to the training process."""

from __future__ import annotations

import threading
import traceback
from typing import Any

import pytest

from feedline.errors import BatchNotPicklable, TooManyOpenFiles
from feedline.system.failures import WorkerTraceback, add_note
from feedline.workers.failure import pack_failure, unpack_failure, unsendable


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


class Attributed(RuntimeError):
    def __init__(self, text: str, index: int = 0) -> None:
        super().__init__(text)
        self.index = index


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


def test_a_picklable_exception_arrives_unchanged() -> None:
    arrived = cross(Attributed("torn", index=17))
    assert type(arrived) is Attributed
    assert str(arrived) == "torn"
    arrived_index: Any = vars(arrived)["index"]
    assert arrived_index == 17


@pytest.mark.parametrize("exc", [ValueError("a"), KeyError("k"), OSError(2, "gone", "file"), StopIteration(4)])
def test_built_in_exceptions_keep_their_arguments(exc: BaseException) -> None:
    arrived = cross(exc)
    assert type(arrived) is type(exc)
    assert arrived.args == exc.args
    assert str(arrived) == str(exc)


def test_feedline_errors_keep_their_text() -> None:
    assert str(cross(TooManyOpenFiles("reading"))) == str(TooManyOpenFiles("reading"))


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


def test_a_local_class_becomes_a_runtime_error_that_says_so() -> None:
    class Local(Exception):
        pass

    arrived = cross(Local("only here"))
    assert type(arrived) is RuntimeError
    assert "Local" in str(arrived)
    assert "only here" in str(arrived)


class HoldingKey(KeyError):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def test_the_text_of_a_rebuilt_key_error_is_readable() -> None:
    arrived = cross(HoldingKey("label"))
    assert type(arrived) is HoldingKey
    assert "\\n" not in str(arrived)
    assert "Traceback" in str(arrived)


def test_the_traceback_of_the_worker_is_the_cause() -> None:
    arrived = cross(ValueError("torn"))
    shown = "".join(traceback.format_exception(arrived))
    assert "in cross" in shown
    assert "raise exc" in shown
    assert shown.count('"""') == 2
    assert type(arrived.__cause__) is WorkerTraceback


def test_a_note_names_the_worker() -> None:
    arrived: Any = cross(ValueError("torn"))
    assert arrived.__notes__ == ["Caught ValueError in DataLoader worker process 3."]


def test_notes_of_the_user_are_kept() -> None:
    exc: Any = ValueError("torn")
    add_note(exc, "sample 4")
    arrived: Any = cross(exc)
    assert arrived.__notes__[0] == "sample 4"
    assert len(arrived.__notes__) == 2


def test_a_chain_of_causes_is_in_the_text() -> None:
    try:
        try:
            raise OSError("disk")
        except OSError as cause:
            raise ValueError("sample") from cause
    except ValueError as exc:
        arrived = unpack_failure(pack_failure(exc, "here"))
    assert "disk" in str(arrived.__cause__)


def test_add_note_works_without_the_method_of_python_3_11() -> None:
    class Old(Exception):
        def __getattribute__(self, name: str) -> Any:
            if name == "add_note":
                raise AttributeError(name)
            return super().__getattribute__(name)

    exc: Any = Old()
    add_note(exc, "first")
    add_note(exc, "second")
    assert exc.__notes__ == ["first", "second"]


def test_the_error_about_unpicklable_indices_shortens_them() -> None:
    exc = unsendable(["x" * 10_000], TypeError("no"))
    assert isinstance(exc, BatchNotPicklable)
    assert len(str(exc)) < 500
    assert "sampler" in str(exc)
