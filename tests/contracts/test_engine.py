"""The suite for engines refuses what breaks the contract."""

from __future__ import annotations

import unittest
from typing import Any

import pytest

from feedline.abc import Engine
from feedline.engines.threads import ThreadEngine
from feedline.testing import EngineContract
from feedline.types import Result, ResultKind, Task


class Broken(ThreadEngine):
    """Keeps the contract until a subclass breaks it."""

    def __init__(self) -> None:
        super().__init__(2)


class LosesAnAnswer(Broken):
    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        return super().collect(timeout_s if timeout_s is None else min(timeout_s, 0.1), worker)[1:]


class AnswersTwice(Broken):
    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        return 2 * super().collect(timeout_s, worker)


class AnswersWhatWasTakenBack(Broken):
    def revoke(self, worker: int) -> int | None:
        task = super().revoke(worker)
        if task is not None:
            self._answers.put(Result(ResultKind.DONE, worker, task, None))
        return task


class TakesBackTheNewest(Broken):
    def revoke(self, worker: int) -> int | None:
        taken = []
        while (task := super().revoke(worker)) is not None:
            taken.append(task)
        if not taken:
            return None
        for task in taken[:-1]:
            self.submit(worker, Task(task, [0]))
        return taken[-1]


class HidesTheTypeOfErrors(Broken):
    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results = super().collect(timeout_s, worker)
        for result in results:
            if result.kind is ResultKind.FAILED:
                result.payload = RuntimeError(str(result.payload))
        return results


class MixesUpTheWorkers(Broken):
    def submit(self, worker: int, task: Task) -> None:
        super().submit(1 - worker, task)


class NeverEndsAStream(Broken):
    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results = super().collect(timeout_s, worker)
        for result in results:
            if result.kind is ResultKind.ENDED:
                result.kind = ResultKind.DONE
        return results


class ForgetsTheEpoch(Broken):
    def submit(self, worker: int, task: Task) -> None:
        task.epoch = 0
        super().submit(worker, task)


class ClosesOnlyOnce(Broken):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True
        super().close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("broken", Broken.__subclasses__())
def test_what_breaks_the_contract_is_noticed(broken: type[Broken], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.testing.engine.PATIENCE_S", 0.3)
    monkeypatch.setattr("feedline.testing.gate.PATIENCE_S", 0.3)

    class Suite(EngineContract):
        def make_engine(self) -> Engine:
            return broken()

    assert any(fails(Suite(), name) for name in dir(Suite) if name.startswith("test_"))


def fails(suite: Any, name: str) -> bool:
    try:
        getattr(suite, name)()
    except unittest.SkipTest:
        return False
    except Exception:
        return True
    return False


def test_a_suite_without_an_engine_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="how the engine is made"):
        EngineContract().test_close_without_open()
