"""The contract of engines: exceptions, and workers that cannot start."""

from __future__ import annotations

from feedline.testing.engine.bench import EngineBench
from feedline.testing.engine.workload import Numbers, SampleFailed, refuse_to_start
from feedline.types import ResultKind


class FailureChapter(EngineBench):
    """What goes wrong in a worker is told in full, and once."""

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
