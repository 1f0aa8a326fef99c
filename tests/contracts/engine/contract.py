"""What every engine must do, as tests.

Define in a subclass how your engine is created and what it can do:

    class TestMyEngine(EngineContract):
        def make_engine(self) -> Engine:
            return MyEngine(worker_count=2)

Every test opens and closes its own engine, also when the test fails. The chapters are independent: each has the bench
and its own tests.
"""

from __future__ import annotations

from feedline.types import ResultKind
from tests.contracts.engine.bench import EngineBench
from tests.contracts.engine.tasks import TaskChapter
from tests.contracts.engine.workers import WorkerChapter
from tests.contracts.engine.workload import BrokenStream, Countdown, Numbers, SampleFailed, refuse_to_start
from tests.contracts.gate import Journal


class FailureChapter(EngineBench):
    """Failures in a worker are reported once, with all details."""

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
            text = str(exc.__cause__)
            trace = exc.__traceback__
            while trace is not None:
                text += trace.tb_frame.f_code.co_name
                trace = trace.tb_next
            assert "__getitem__" in text

    def test_a_worker_that_cannot_start_dies_once_and_says_why(self) -> None:
        with self._at_work(Numbers(), init=refuse_to_start) as engine:
            for worker in range(engine.worker_count):
                for number in range(2):
                    self._submit(engine, worker, 10 * worker + number, [0])
            deaths = {result.worker: result for result in self._collect(engine, engine.worker_count)}
            self._nothing_comes(engine)
            assert sorted(deaths) == list(range(engine.worker_count))
            for worker, death in deaths.items():
                assert death.kind is ResultKind.DIED, death
                assert type(death.payload) is SampleFailed, "expected the user's own exception"
                assert f"worker {worker} has no licence" in str(death.payload)

    def test_a_sample_that_ends_its_worker_does_not_go_unnoticed(self) -> None:
        with self._at_work(Numbers(failing={1: SystemExit(3)})) as engine:
            self._submit(engine, 0, 0, [1])
            (result,) = self._collect(engine, 1)
            assert result.worker == 0
            assert result.kind in (ResultKind.FAILED, ResultKind.DIED)
            assert isinstance(result.payload, BaseException)


class StreamChapter(EngineBench):
    """Each worker reads its own stream from beginning to end in every epoch."""

    def test_each_worker_has_a_stream_of_its_own_until_it_ends(self) -> None:
        with self._at_work(Countdown(5), streams=True) as engine:
            for worker in range(engine.worker_count):
                answers = [self._ask(engine, 10 * worker + number, 2, worker=worker) for number in range(5)]
                kinds = [result.kind for result in answers]
                assert kinds == [ResultKind.DONE] * 3 + [ResultKind.ENDED] * 2
                assert [self.batch_of(result).tolist() for result in answers[:3]] == [[5, 4], [3, 2], [1]]

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


class EndChapter(EngineBench):
    """`close` may be called at any time, and never waits for a worker."""

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
                engine.close()  # returns although the gate is shut
                gate.open()
            assert journal.read() == ["0"], "a waiting task was started after close"


class EngineContract(TaskChapter, FailureChapter, WorkerChapter, StreamChapter, EndChapter):
    """Subclass this, override `make_engine`, and let pytest collect the subclass."""
