"""What every engine must do, as tests.

Say in a subclass how your engine is made and what it can do:

    class TestMyEngine(EngineContract):
        replaces_workers = True

        def make_engine(self) -> Engine:
            return MyEngine(worker_count=2)

Every test opens an engine of its own and closes it, also when the test fails.
"""

from __future__ import annotations

import os
import tempfile
import time
import unittest
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc import Engine, Framework
from feedline.collate import default
from feedline.errors import WorkerDied, WorkerStartError
from feedline.frameworks.numpy import NumpyFramework
from feedline.testing.gate import PATIENCE_S, Gate, Journal
from feedline.types import DatasetKind, Parcel, Result, ResultKind, Task, WorkerSpec


class SampleFailed(Exception):
    """Raised by a sample on purpose."""


@dataclass
class Numbers:
    """Sample i is an array of two numbers i."""

    gate: Gate | None = None
    held: tuple[int, ...] = ()
    """Samples that pass through the gate first."""
    journal: Journal | None = None
    failing: Mapping[int, BaseException] | None = None
    """What the samples raise that raise."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        if self.journal is not None:
            self.journal.write(index)
        if self.gate is not None and index in self.held:
            self.gate.pass_through()
        if self.failing and index in self.failing:
            raise self.failing[index]
        return np.full(2, index)


@dataclass
class Countdown:
    """A stream of `count`, ..., 2, 1."""

    count: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count, 0, -1))


@dataclass
class BrokenStream:
    """Raises after two samples."""

    def __iter__(self) -> Iterator[int]:
        yield 1
        yield 2
        raise SampleFailed("no third sample")


@dataclass
class WriteNumber:
    """A `worker_init` that writes down who was started."""

    journal: Journal

    def __call__(self, number: int) -> None:
        self.journal.write(number)


def refuse_to_start(number: int) -> None:
    """Fail as a `worker_init`."""
    raise SampleFailed(f"worker {number} has no licence")


def refuse_as_first(number: int) -> None:
    """Fail as the `worker_init` of worker 0."""
    if number == 0:
        refuse_to_start(number)


@dataclass
class RefuseOnce:
    """A `worker_init` that writes down who was started, and fails when worker 0 is for the first time."""

    journal: Journal

    def __call__(self, number: int) -> None:
        self.journal.write(number)
        if self.journal.read().count("0") == 1:
            refuse_as_first(number)


class EngineContract:
    """Subclass this, override `make_engine`, and let pytest collect the subclass.

    Example:
        >>> from feedline.engines.threads import ThreadEngine
        >>> class TestThreads(EngineContract):
        ...     def make_engine(self):
        ...         return ThreadEngine(2)
        >>> TestThreads().test_a_task_comes_back_as_its_batch()
    """

    has_workers: bool = True
    """False if tasks run in the caller's thread, inside `collect`."""

    has_processes: bool = False
    """True if each worker is a process of its own: it has a process id and can be killed."""

    replaces_workers: bool = False
    """True if another worker can be started in the place of one that died."""

    tells_stacks: bool = False
    """True if it can be said what a worker is doing."""

    framework: Framework = NumpyFramework()

    def make_engine(self) -> Engine:
        """Return an engine that has not been opened, with two workers if it has any."""
        raise NotImplementedError("say how the engine is made")

    def slot_for(self, worker: int) -> int:
        """Return a slot for the next task, -1 if the engine does without."""
        return -1

    def batch_of(self, result: Result) -> Any:
        """Return the batch of a finished task."""
        if isinstance(result.payload, Parcel):
            raise NotImplementedError("say how a parcel is opened")
        return result.payload

    # -- how the tests work ------------------------------------------------------------------------------------------

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="feedline-") as folder:
            yield Path(folder)

    @contextmanager
    def _gate(self) -> Iterator[Gate]:
        self._need_workers("nobody else can be held while the caller goes on")
        with self._folder() as folder, Gate(folder / "gate") as gate:
            yield gate

    @contextmanager
    def _at_work(self, dataset: Any, *, streams: bool = False, start: bool = True, **options: Any) -> Iterator[Engine]:
        engine = self.make_engine()
        spec = WorkerSpec(
            dataset=dataset,
            kind=DatasetKind.ITERABLE if streams else DatasetKind.MAP,
            collate=options.pop("collate", default),
            framework=self.framework,
            worker_count=engine.worker_count if self.has_workers else 0,
            base_seed=7,
            **options,
        )
        try:
            engine.open(spec)
            if start:
                engine.start()
            yield engine
        finally:
            engine.close()

    def _need_workers(self, reason: str) -> None:
        if not self.has_workers:
            raise unittest.SkipTest(f"has_workers is False: {reason}")

    def _need_replacements(self) -> None:
        if not self.replaces_workers:
            raise unittest.SkipTest("replaces_workers is False: a worker that is gone stays away")

    def _submit(self, engine: Engine, worker: int, id: int, indices: Any, epoch: int = 0) -> None:  # noqa: A002
        engine.submit(worker, Task(id, indices, self.slot_for(worker), epoch))

    def _collect(self, engine: Engine, count: int, worker: int | None = None) -> list[Result]:
        """Wait for so many answers."""
        results: list[Result] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(results) < count:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{len(results)} of {count} answers came within {PATIENCE_S} s"
            results += engine.collect(left_s, worker)
        assert len(results) == count, f"more than {count} answers: {results}"
        return results

    def _ask(self, engine: Engine, id: int, indices: Any, epoch: int = 0, worker: int = 0) -> Result:  # noqa: A002
        self._submit(engine, worker, id, indices, epoch)
        (result,) = self._collect(engine, 1)
        assert result.task_id == id
        assert result.worker == worker
        return result

    def _nothing_comes(self, engine: Engine) -> None:
        assert engine.collect(0.05) == []

    def _numbers_of(self, result: Result) -> list[int]:
        assert result.kind is ResultKind.DONE, result
        batch = self.batch_of(result)
        assert batch.shape == (len(batch), 2)
        assert (batch[:, 0] == batch[:, 1]).all()
        numbers: list[int] = batch[:, 0].tolist()
        return numbers

    # -- tasks -------------------------------------------------------------------------------------------------------

    def test_a_task_comes_back_as_its_batch(self) -> None:
        with self._at_work(Numbers()) as engine:
            result = self._ask(engine, 41, [3, 1, 2])
            assert self._numbers_of(result) == [3, 1, 2]

    def test_tasks_submitted_before_the_start_are_answered(self) -> None:
        with self._at_work(Numbers(), start=False) as engine:
            for number in range(4):
                self._submit(engine, number % engine.worker_count, number, [number])
            engine.start()
            answers = {result.task_id: self._numbers_of(result) for result in self._collect(engine, 4)}
            assert answers == {number: [number] for number in range(4)}

    def test_each_worker_answers_in_the_order_it_was_asked(self) -> None:
        asked: dict[int, list[int]] = defaultdict(list)
        answered: dict[int, list[int]] = defaultdict(list)
        with self._at_work(Numbers()) as engine:
            for number in range(40):
                worker = number * 7 % 5 % engine.worker_count
                asked[worker].append(number)
                self._submit(engine, worker, number, [number])
            for result in self._collect(engine, 40):
                answered[result.worker].append(result.task_id)
                assert self._numbers_of(result) == [result.task_id]
        assert answered == asked

    def test_every_worker_is_told_its_number(self) -> None:
        self._need_workers("the caller is no worker")
        with self._folder() as folder:
            journal = Journal(folder / "journal")
            with self._at_work(Numbers(), init=WriteNumber(journal)) as engine:
                for worker in range(engine.worker_count):
                    self._submit(engine, worker, worker, [worker])
                self._collect(engine, engine.worker_count)
                assert sorted(journal.read()) == [str(worker) for worker in range(engine.worker_count)]

    def test_submitting_never_waits_for_a_worker(self) -> None:
        with self._gate() as gate, self._at_work(Numbers(gate, held=(0,))) as engine:
            self._submit(engine, 0, 0, [0])
            gate.wait_until_reached()
            long = list(range(1, 3000))  # forty of these are more than a socket holds
            for number in range(1, 41):
                self._submit(engine, 0, number, [number, *long])
            gate.open()
            answers = self._collect(engine, 41)
            assert [result.task_id for result in answers] == list(range(41))
            assert all(self._numbers_of(result)[0] == result.task_id for result in answers)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def test_collect_returns_nothing_when_the_time_is_up(self) -> None:
        with self._at_work(Numbers()) as engine:
            assert engine.collect(0.0) == []
            assert engine.collect(0.02) == []

    def test_collect_gives_up_while_a_worker_is_busy(self) -> None:
        with self._gate() as gate, self._at_work(Numbers(gate, held=(0,))) as engine:
            self._submit(engine, 0, 0, [0])
            gate.wait_until_reached()
            assert engine.collect(0.02) == []
            assert engine.collect(0.02, 0) == []
            gate.open()
            assert self._numbers_of(*self._collect(engine, 1)) == [0]

    def test_the_answer_of_one_worker_can_be_waited_for(self) -> None:
        with self._gate() as gate, self._at_work(Numbers(gate, held=(0,))) as engine:
            self._submit(engine, 0, 0, [0])
            self._submit(engine, 1, 1, [1])
            gate.wait_until_reached()
            assert self._collect(engine, 1, worker=1)[0].task_id == 1
            gate.open()
            assert self._collect(engine, 1, worker=0)[0].task_id == 0

    def test_answers_left_for_later_are_not_lost(self) -> None:
        with self._at_work(Numbers()) as engine:
            last = engine.worker_count - 1
            for number in range(20):
                self._submit(engine, number % engine.worker_count, number, [number])
            seen = []
            while 18 + last not in seen:  # whatever the others say meanwhile may come along
                seen += [result.task_id for result in engine.collect(PATIENCE_S, last)]
            seen += [result.task_id for result in self._collect(engine, 20 - len(seen))]
            assert sorted(seen) == list(range(20))

    # -- taking tasks back -------------------------------------------------------------------------------------------

    def test_revoke_gives_back_exactly_what_has_not_begun(self) -> None:
        with self._gate() as gate, self._at_work(Numbers(gate, held=(0,))) as engine:
            self._submit(engine, 0, 100, [0])
            gate.wait_until_reached()
            for number in range(1, 6):
                self._submit(engine, 0, 100 + number, [number])
            assert [engine.revoke(0) for _ in range(6)] == [101, 102, 103, 104, 105, None]
            assert engine.revoke(1) is None
            gate.open()
            (result,) = self._collect(engine, 1)
            assert result.task_id == 100
            self._nothing_comes(engine)

    def test_revoke_without_waiting_tasks(self) -> None:
        with self._at_work(Numbers()) as engine:
            assert engine.revoke(0) is None
            self._ask(engine, 0, [0])
            assert engine.revoke(0) is None
            assert self._numbers_of(self._ask(engine, 1, [1])) == [1]

    def test_a_task_taken_back_can_be_given_to_another_worker(self) -> None:
        with self._gate() as gate, self._at_work(Numbers(gate, held=(0,))) as engine:
            self._submit(engine, 0, 0, [0])
            gate.wait_until_reached()
            self._submit(engine, 0, 1, [1])
            assert engine.revoke(0) == 1
            result = self._ask(engine, 1, [1], worker=1)
            assert self._numbers_of(result) == [1]
            gate.open()
            self._collect(engine, 1)

    def test_a_task_is_either_answered_or_taken_back(self) -> None:
        """Begin and take back race for every task; each time exactly one of them wins."""
        with self._at_work(Numbers()) as engine:
            asked = 0
            answered: list[int] = []
            taken_back: list[int] = []
            for _ in range(50):
                for _ in range(4):
                    self._submit(engine, 0, asked, [asked])
                    asked += 1
                for _ in range(2):
                    task = engine.revoke(0)
                    if task is not None:
                        taken_back.append(task)
                answered += [result.task_id for result in engine.collect(0.0)]
            answered += [result.task_id for result in self._collect(engine, asked - len(answered) - len(taken_back))]
            self._nothing_comes(engine)
        assert sorted(answered + taken_back) == list(range(asked))
        assert answered == sorted(answered)

    # -- failures ----------------------------------------------------------------------------------------------------

    def test_an_exception_arrives_as_itself_and_the_worker_goes_on(self) -> None:
        failing = {1: SampleFailed("sample 1 is torn"), 2: KeyError("label"), 3: ValueError("three", 3)}
        with self._at_work(Numbers(failing=failing)) as engine:
            for index, expected in failing.items():
                result = self._ask(engine, index, [0, index])
                assert result.kind is ResultKind.FAILED
                assert type(result.payload) is type(expected)
                assert result.payload.args == expected.args
            assert self._numbers_of(self._ask(engine, 9, [9])) == [9]

    def test_an_exception_tells_where_it_was_raised(self) -> None:
        with self._at_work(Numbers(failing={1: SampleFailed("torn")})) as engine:
            exc = self._ask(engine, 0, [1]).payload
            told = str(exc.__cause__)
            trace = exc.__traceback__
            while trace is not None:
                told += trace.tb_frame.f_code.co_name
                trace = trace.tb_next
            assert "__getitem__" in told

    def test_a_worker_that_cannot_start_dies_once_and_says_why(self) -> None:
        self._need_workers("nothing is started")
        with self._at_work(Numbers(), init=refuse_to_start) as engine:
            for worker in range(engine.worker_count):
                for number in range(2):
                    self._submit(engine, worker, 10 * worker + number, [0])
            deaths = {result.worker: result for result in self._collect(engine, engine.worker_count)}
            self._nothing_comes(engine)
            assert sorted(deaths) == list(range(engine.worker_count))
            for worker, death in deaths.items():
                assert death.kind is ResultKind.DIED, death
                assert type(death.payload) is SampleFailed, "the user's own exception"
                assert f"worker {worker} has no licence" in str(death.payload)

    def test_a_sample_that_ends_its_worker_does_not_go_unnoticed(self) -> None:
        with self._at_work(Numbers(failing={1: SystemExit(3)})) as engine:
            self._submit(engine, 0, 0, [1])
            try:
                (result,) = self._collect(engine, 1)
            except SystemExit:
                return  # it was the caller's own thread
            assert result.worker == 0
            assert result.kind in (ResultKind.FAILED, ResultKind.DIED)
            assert isinstance(result.payload, BaseException)

    # -- another worker in the place of one --------------------------------------------------------------------------

    def test_another_worker_takes_the_place_of_one_that_died(self) -> None:
        self._need_replacements()
        with self._gate() as gate, self._folder() as folder:
            journal = Journal(folder / "journal")
            with self._at_work(Numbers(gate, held=(5,)), init=RefuseOnce(journal)) as engine:
                self._submit(engine, 1, 5, [5])
                self._submit(engine, 1, 6, [6])
                gate.wait_until_reached()
                for number in range(3):
                    self._submit(engine, 0, number, [number])
                (death,) = self._collect(engine, 1)
                assert (death.kind, death.worker) == (ResultKind.DIED, 0)
                engine.replace(0)
                assert engine.revoke(0) is None, "what the old one had waiting is not the new one's"
                self._nothing_comes(engine)
                assert self._numbers_of(self._ask(engine, 7, [7])) == [7], "the new one works"
                gate.open()
                others = self._collect(engine, 2)
                assert [(result.worker, self._numbers_of(result)) for result in others] == [(1, [5]), (1, [6])]
                assert sorted(journal.read()) == ["0", "0", "1"], "nobody else was started again"

    def test_another_worker_takes_the_place_of_one_that_is_idle(self) -> None:
        self._need_replacements()
        with self._folder() as folder:
            journal = Journal(folder / "journal")
            with self._at_work(Numbers(), init=WriteNumber(journal)) as engine:
                for worker in range(2):
                    self._ask(engine, worker, [worker], worker=worker)
                engine.replace(0)
                for worker in range(2):
                    assert self._numbers_of(self._ask(engine, 2 + worker, [5], worker=worker)) == [5]
                self._nothing_comes(engine)  # the old one was sent away: that is no death
                assert sorted(journal.read()) == ["0", "0", "1"]

    def test_a_worker_can_be_replaced_again_and_again(self) -> None:
        self._need_replacements()
        with self._at_work(Numbers(), init=refuse_as_first) as engine:
            for number in range(3):
                if number:
                    engine.replace(0)
                self._submit(engine, 0, number, [0])
                (death,) = self._collect(engine, 1)
                assert (death.kind, death.worker) == (ResultKind.DIED, 0)
            assert self._numbers_of(self._ask(engine, 3, [3], worker=1)) == [3]

    def test_a_new_worker_begins_its_stream_from_the_start(self) -> None:
        self._need_replacements()
        with self._at_work(Countdown(5), streams=True) as engine:
            first = [self._ask(engine, worker, 2, worker=worker) for worker in range(2)]
            engine.replace(0)
            second = [self._ask(engine, 2 + worker, 2, worker=worker) for worker in range(2)]
            assert [self.batch_of(result).tolist() for result in first] == [[5, 4], [5, 4]]
            assert [self.batch_of(result).tolist() for result in second] == [[5, 4], [3, 2]]

    def test_an_engine_that_never_replaces_workers_says_so(self) -> None:
        if self.replaces_workers:
            raise unittest.SkipTest("replaces_workers is True")
        with self._at_work(Numbers()) as engine:
            self._ask(engine, 0, [0])
            with unittest.TestCase().assertRaises(WorkerStartError):  # noqa: PT027  pytest need not be there
                engine.replace(0)
            assert self._numbers_of(self._ask(engine, 1, [1])) == [1]

    # -- what a worker is doing, and its end -------------------------------------------------------------------------

    def test_the_stack_of_a_worker_names_the_function_that_it_is_in(self) -> None:
        with self._gate() as gate, self._at_work(Numbers(gate, held=(0,))) as engine:
            self._ask(engine, 1, [1], worker=1)
            self._submit(engine, 0, 0, [0])
            gate.wait_until_reached()
            stacks = [engine.stack(worker) for worker in range(2)]
            if self.tells_stacks:
                assert "pass_through" in (stacks[0] or ""), stacks[0]
                assert "pass_through" not in (stacks[1] or ""), "that is not what the other one is doing"
            else:
                assert stacks == [None, None], "tells_stacks is False"
            gate.open()
            assert self._numbers_of(*self._collect(engine, 1)) == [0], "it goes on as if nobody had looked"

    def test_a_process_has_an_id_of_its_own(self) -> None:
        with self._at_work(Numbers()) as engine:
            for worker in range(engine.worker_count):
                self._ask(engine, worker, [worker], worker=worker)
            pids = [engine.pid(worker) for worker in range(engine.worker_count)]
            if not self.has_processes:
                assert pids == [None] * engine.worker_count, "has_processes is False"
                return
            assert None not in pids
            assert len({*pids, os.getpid()}) == engine.worker_count + 1
            if self.replaces_workers:
                engine.replace(0)
                assert engine.pid(0) not in (None, *pids)
                assert engine.pid(1) == pids[1]

    def test_a_worker_that_is_killed_dies(self) -> None:
        with self._gate() as gate, self._at_work(Numbers(gate, held=(0,))) as engine:
            self._submit(engine, 0, 0, [0])
            gate.wait_until_reached()
            self._submit(engine, 0, 1, [1])
            assert engine.kill(0) == self.has_processes, "has_processes says whether that can be done"
            if not self.has_processes:
                gate.open()
                assert [self._numbers_of(result) for result in self._collect(engine, 2)] == [[0], [1]]
                return
            (death,) = self._collect(engine, 1)
            assert (death.kind, death.worker) == (ResultKind.DIED, 0)
            assert type(death.payload) is WorkerDied
            assert death.payload.was_ready, "it was at work"
            assert self._numbers_of(self._ask(engine, 2, [2], worker=1)) == [2], "the other one goes on"
            if self.replaces_workers:
                engine.replace(0)
                assert self._numbers_of(self._ask(engine, 3, [3])) == [3]

    # -- streams -----------------------------------------------------------------------------------------------------

    def test_each_worker_has_a_stream_of_its_own_until_it_ends(self) -> None:
        with self._at_work(Countdown(5), streams=True) as engine:
            for worker in range(engine.worker_count):
                answers = [self._ask(engine, 10 * worker + number, 2, worker=worker) for number in range(5)]
                kinds = [result.kind for result in answers]
                assert kinds == [ResultKind.DONE] * 3 + [ResultKind.ENDED] * 2
                assert [self.batch_of(result).tolist() for result in answers[:3]] == [[5, 4], [3, 2], [1]]

    def test_a_stream_without_its_last_short_batch(self) -> None:
        with self._at_work(Countdown(5), streams=True, drop_last=True) as engine:
            answers = [self._ask(engine, number, 2) for number in range(3)]
            assert [result.kind for result in answers] == [ResultKind.DONE, ResultKind.DONE, ResultKind.ENDED]

    def test_an_empty_stream_ends_at_once(self) -> None:
        with self._at_work(Countdown(0), streams=True) as engine:
            assert self._ask(engine, 0, 2).kind is ResultKind.ENDED

    def test_a_new_epoch_begins_the_stream_again(self) -> None:
        with self._at_work(Countdown(3), streams=True) as engine:
            first = [self._ask(engine, number, 2) for number in range(3)]
            again = [self._ask(engine, 3 + number, 2, epoch=1) for number in range(3)]
            early = [self._ask(engine, 6, 2, epoch=2), self._ask(engine, 7, 2, epoch=3)]
            for answers in (first, again):
                assert [result.kind for result in answers] == [ResultKind.DONE, ResultKind.DONE, ResultKind.ENDED]
                assert [self.batch_of(result).tolist() for result in answers[:2]] == [[3, 2], [1]]
            assert [self.batch_of(result).tolist() for result in early] == [[3, 2], [3, 2]]

    def test_a_stream_that_raises_arrives_as_a_failure(self) -> None:
        with self._at_work(BrokenStream(), streams=True) as engine:
            assert self.batch_of(self._ask(engine, 0, 2)).tolist() == [1, 2]
            result = self._ask(engine, 1, 2)
            assert result.kind is ResultKind.FAILED
            assert type(result.payload) is SampleFailed

    # -- the end -----------------------------------------------------------------------------------------------------

    def test_close_may_be_called_twice(self) -> None:
        with self._at_work(Numbers()) as engine:
            self._ask(engine, 0, [0])
            engine.close()
            engine.close()

    def test_close_without_start(self) -> None:
        with self._at_work(Numbers(), start=False) as engine:
            self._submit(engine, 0, 0, [0])

    def test_close_without_open(self) -> None:
        self.make_engine().close()

    def test_close_with_answers_nobody_asked_for(self) -> None:
        with self._at_work(Numbers()) as engine:
            for number in range(20):
                self._submit(engine, number % engine.worker_count, number, [number])

    def test_close_does_not_wait_for_a_worker_that_is_busy(self) -> None:
        with self._gate() as gate, self._folder() as folder:
            journal = Journal(folder / "journal")
            with self._at_work(Numbers(gate, held=(0,), journal=journal)) as engine:
                for number in range(5):
                    self._submit(engine, 0, number, [number])
                gate.wait_until_reached()
                self._close_in_time(engine)
                gate.open()
            assert journal.read() == ["0"], "a task that had not begun was begun after close"

    def _close_in_time(self, engine: Engine) -> None:
        begun = time.monotonic()
        engine.close()
        elapsed_s = time.monotonic() - begun
        assert elapsed_s < 5, f"close took {elapsed_s:.1f} s although all it had to do was to leave"
