"""The suite for engines fails for engines that break the contract."""

from __future__ import annotations

import multiprocessing
import unittest
from typing import Any, ClassVar

import pytest

from feedline.abc import Engine
from feedline.errors import WorkerDied
from feedline.memory.arena import Arena
from feedline.types import Result, ResultKind
from feedline.workers.processes.engine import ProcessEngine
from feedline.workers.threads import ThreadEngine
from tests.contracts.engine import EngineContract
from tests.workers.processes.test_engine import ProcessContract


class Broken(ThreadEngine):
    """Keeps the contract; each subclass breaks it in one way."""

    noticed_by: ClassVar[str]
    """The test that fails for it. There may be others."""

    def __init__(self) -> None:
        super().__init__(2)


class LosesAnAnswer(Broken):
    noticed_by = "test_a_task_comes_back_as_its_batch"

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        return super().collect(timeout_s if timeout_s is None else min(timeout_s, 0.1), worker)[1:]


class AnswersWhatWasTakenBack(Broken):
    noticed_by = "test_revoke_gives_back_exactly_what_has_not_begun"

    def revoke(self, worker: int) -> int | None:
        task = super().revoke(worker)
        if task is not None:
            self._answers.put(Result(ResultKind.DONE, worker, task, None))
        return task


class HidesTheTypeOfErrors(Broken):
    noticed_by = "test_an_exception_arrives_as_itself_and_the_worker_goes_on"

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results = super().collect(timeout_s, worker)
        for result in results:
            if result.kind is ResultKind.FAILED:
                result.payload = RuntimeError(str(result.payload))
        return results


class NeverEndsAStream(Broken):
    noticed_by = "test_an_empty_stream_ends_at_once"

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results = super().collect(timeout_s, worker)
        for result in results:
            if result.kind is ResultKind.ENDED:
                result.kind = ResultKind.DONE
        return results


class ClosesOnlyOnce(Broken):
    noticed_by = "test_close_may_be_called_twice"
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True
        super().close()


class HidesWhyAWorkerCannotStart(Broken):
    noticed_by = "test_a_worker_that_cannot_start_dies_once_and_says_why"

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results = super().collect(timeout_s, worker)
        for result in results:
            if result.kind is ResultKind.DIED:
                result.payload = WorkerDied("for some reason")
        return results


class ReplacesAllWorkers(Broken):
    noticed_by = "test_another_worker_takes_the_place_of_one_that_died"

    def replace(self, worker: int) -> None:
        for number in range(self.worker_count):
            super().replace(number)


class ReturnsTheStacksOfAllWorkers(Broken):
    noticed_by = "test_the_stack_of_a_worker_names_the_function_that_it_is_in"

    def stack(self, worker: int) -> str | None:
        return "".join(super(ReturnsTheStacksOfAllWorkers, self).stack(number) or "" for number in range(2))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("broken", Broken.__subclasses__())
def test_engines_that_break_the_contract_fail_the_suite(broken: type[Broken], monkeypatch: pytest.MonkeyPatch) -> None:
    class Suite(EngineContract):
        kind: type[Broken] = Broken
        replaces_workers = tells_stacks = True

        def make_engine(self) -> Engine:
            return self.kind()

    suite = Suite()
    getattr(suite, broken.noticed_by)()  # as long as the contract is kept
    suite.kind = broken
    monkeypatch.setattr("tests.contracts.engine.bench.TIMEOUT_S", 0.3)
    monkeypatch.setattr("tests.contracts.engine.tasks.TIMEOUT_S", 0.3)
    monkeypatch.setattr("tests.contracts.gate.TIMEOUT_S", 0.3)
    assert fails(suite, broken.noticed_by)


def fails(suite: Any, name: str) -> bool:
    try:
        getattr(suite, name)()
    except unittest.SkipTest:
        return False
    except Exception:  # an assertion of the suite, or an error of the engine itself
        return True
    return False


# -- engines of processes ---


class KillsNoWorker(ProcessEngine):
    def kill(self, worker: int) -> bool:
        return True


class HasOneProcessId(ProcessEngine):
    def pid(self, worker: int) -> int | None:
        return super().pid(0)


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (KillsNoWorker, "test_a_worker_that_is_killed_dies"),
        (HasOneProcessId, "test_a_process_has_an_id_of_its_own"),
    ],
)
def test_process_engines_that_break_the_contract_fail_the_suite(
    broken: type[ProcessEngine], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Suite(ProcessContract):
        kind: type[ProcessEngine] = ProcessEngine

        def make_engine(self) -> Engine:
            self.arena = Arena(8, shared=True, budget=1 << 20)
            return self.kind(2, self.arena, multiprocessing.get_context("fork"))

    suite = Suite()
    getattr(suite, name)()  # as long as the contract is kept
    suite.kind = broken
    monkeypatch.setattr("tests.contracts.engine.bench.TIMEOUT_S", 0.3)
    monkeypatch.setattr("tests.contracts.engine.tasks.TIMEOUT_S", 0.3)
    assert fails(suite, name)


def test_a_suite_without_an_engine_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="Override make_engine"):
        EngineContract().test_close_without_open()
