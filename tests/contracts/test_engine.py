"""The suite for engines fails for engines that break the contract."""

from __future__ import annotations

import multiprocessing
import os
import unittest
from typing import Any, ClassVar

import pytest

from feedline.abc import Engine
from feedline.errors import WorkerDied
from feedline.memory.arena import Arena
from feedline.testing import EngineContract
from feedline.types import Result, ResultKind, Task
from feedline.workers.processes.engine import ProcessEngine
from feedline.workers.threads import ThreadEngine
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


class AnswersTwice(Broken):
    noticed_by = "test_a_task_comes_back_as_its_batch"

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        return 2 * super().collect(timeout_s, worker)


class AnswersWhatWasTakenBack(Broken):
    noticed_by = "test_revoke_gives_back_exactly_what_has_not_begun"

    def revoke(self, worker: int) -> int | None:
        task = super().revoke(worker)
        if task is not None:
            self._answers.put(Result(ResultKind.DONE, worker, task, None))
        return task


class TakesBackTheNewest(Broken):
    noticed_by = "test_revoke_gives_back_exactly_what_has_not_begun"

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
    noticed_by = "test_an_exception_arrives_as_itself_and_the_worker_goes_on"

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results = super().collect(timeout_s, worker)
        for result in results:
            if result.kind is ResultKind.FAILED:
                result.payload = RuntimeError(str(result.payload))
        return results


class MixesUpTheWorkers(Broken):
    noticed_by = "test_each_worker_answers_in_the_order_it_was_asked"

    def submit(self, worker: int, task: Task) -> None:
        super().submit(1 - worker, task)


class NeverEndsAStream(Broken):
    noticed_by = "test_an_empty_stream_ends_at_once"

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results = super().collect(timeout_s, worker)
        for result in results:
            if result.kind is ResultKind.ENDED:
                result.kind = ResultKind.DONE
        return results


class ForgetsTheEpoch(Broken):
    noticed_by = "test_a_new_epoch_begins_the_stream_again"

    def submit(self, worker: int, task: Task) -> None:
        task.epoch = 0
        super().submit(worker, task)


class ClosesOnlyOnce(Broken):
    noticed_by = "test_close_may_be_called_twice"
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True
        super().close()


class HidesThatAWorkerCannotStart(Broken):
    noticed_by = "test_a_worker_that_cannot_start_dies_once_and_says_why"

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        return [result for result in super().collect(timeout_s, worker) if result.kind is not ResultKind.DIED]


class HidesWhyAWorkerCannotStart(Broken):
    noticed_by = "test_a_worker_that_cannot_start_dies_once_and_says_why"

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results = super().collect(timeout_s, worker)
        for result in results:
            if result.kind is ResultKind.DIED:
                result.payload = WorkerDied("for some reason")
        return results


class ReplacesNoWorker(Broken):
    noticed_by = "test_another_worker_takes_the_place_of_one_that_is_idle"

    def replace(self, worker: int) -> None:
        return


class ReplacesTheOther(Broken):
    noticed_by = "test_another_worker_takes_the_place_of_one_that_died"

    def replace(self, worker: int) -> None:
        super().replace(1 - worker)


class ReplacesAllWorkers(Broken):
    noticed_by = "test_another_worker_takes_the_place_of_one_that_died"

    def replace(self, worker: int) -> None:
        for number in range(self.worker_count):
            super().replace(number)


class GivesTheNewWorkerTheTasksOfTheOld(Broken):
    noticed_by = "test_another_worker_takes_the_place_of_one_that_died"

    def replace(self, worker: int) -> None:
        waiting = []
        while (task := super().revoke(worker)) is not None:
            waiting.append(task)
        super().replace(worker)
        for task in waiting:
            self.submit(worker, Task(task, [0]))


class ReportsReplacedWorkersAsDead(Broken):
    noticed_by = "test_another_worker_takes_the_place_of_one_that_is_idle"

    def replace(self, worker: int) -> None:
        super().replace(worker)
        self._answers.put(Result(ResultKind.DIED, worker, -1, WorkerDied("sent away")))


class HasNoStacks(Broken):
    noticed_by = "test_the_stack_of_a_worker_names_the_function_that_it_is_in"

    def stack(self, worker: int) -> str | None:
        return None


class ReturnsTheStacksOfAllWorkers(Broken):
    noticed_by = "test_the_stack_of_a_worker_names_the_function_that_it_is_in"

    def stack(self, worker: int) -> str | None:
        return "".join(super(ReturnsTheStacksOfAllWorkers, self).stack(number) or "" for number in range(2))


class PretendsToKill(Broken):
    noticed_by = "test_a_worker_that_is_killed_dies"

    def kill(self, worker: int) -> bool:
        return True


class GivesAProcessIdToThreads(Broken):
    noticed_by = "test_a_process_has_an_id_of_its_own"

    def pid(self, worker: int) -> int | None:
        return os.getpid()


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
    monkeypatch.setattr("feedline.testing.engine.bench.TIMEOUT_S", 0.3)
    monkeypatch.setattr("feedline.testing.engine.tasks.TIMEOUT_S", 0.3)
    monkeypatch.setattr("feedline.testing.gate.TIMEOUT_S", 0.3)
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


class KillsTheOther(ProcessEngine):
    def kill(self, worker: int) -> bool:
        return super().kill(1 - worker)


class CannotKill(ProcessEngine):
    def kill(self, worker: int) -> bool:
        return False


class ReportsThatItWasNotReady(ProcessEngine):
    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results = super().collect(timeout_s, worker)
        for result in results:
            if type(result.payload) is WorkerDied:
                result.payload.was_ready = False
        return results


class HasOneProcessId(ProcessEngine):
    def pid(self, worker: int) -> int | None:
        return super().pid(0)


class KeepsTheOldProcessId(ProcessEngine):
    def pid(self, worker: int) -> int | None:
        self._first = getattr(self, "_first", None) or self.pids
        return self._first[worker]


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (KillsNoWorker, "test_a_worker_that_is_killed_dies"),
        (KillsTheOther, "test_a_worker_that_is_killed_dies"),
        (CannotKill, "test_a_worker_that_is_killed_dies"),
        (ReportsThatItWasNotReady, "test_a_worker_that_is_killed_dies"),
        (HasOneProcessId, "test_a_process_has_an_id_of_its_own"),
        (KeepsTheOldProcessId, "test_a_process_has_an_id_of_its_own"),
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
    monkeypatch.setattr("feedline.testing.engine.bench.TIMEOUT_S", 0.3)
    monkeypatch.setattr("feedline.testing.engine.tasks.TIMEOUT_S", 0.3)
    assert fails(suite, name)


def test_a_suite_without_an_engine_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="Override make_engine"):
        EngineContract().test_close_without_open()
