"""The contract of engines: submitting, waiting for and cancelling tasks."""

from __future__ import annotations

from collections import defaultdict

from tests.contracts.engine.bench import EngineBench
from tests.contracts.engine.workload import Numbers, WriteNumber
from tests.contracts.gate import TIMEOUT_S, Journal


class TaskChapter(EngineBench):
    """Every task is answered once, or taken back."""

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
        submitted: dict[int, list[int]] = defaultdict(list)
        answered: dict[int, list[int]] = defaultdict(list)
        with self._at_work(Numbers()) as engine:
            for number in range(40):
                worker = number * 7 % 5 % engine.worker_count
                submitted[worker].append(number)
                self._submit(engine, worker, number, [number])
            for result in self._collect(engine, 40):
                answered[result.worker].append(result.task_id)
                assert self._numbers_of(result) == [result.task_id]
        assert answered == submitted

    def test_every_worker_is_told_its_number(self) -> None:
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
            long = list(range(1, 3000))  # forty of these do not fit into a socket's buffer
            for number in range(1, 41):
                self._submit(engine, 0, number, [number, *long])
            gate.open()
            answers = self._collect(engine, 41)
            assert [result.task_id for result in answers] == list(range(41))
            assert all(self._numbers_of(result)[0] == result.task_id for result in answers)

    # -- waiting -----------------------------------------------------------------------------------------------------

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
            while 18 + last not in seen:  # answers of other workers may be returned too
                seen += [result.task_id for result in engine.collect(TIMEOUT_S, last)]
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

    def test_a_task_is_either_answered_or_taken_back(self) -> None:
        """Starting and revoking race for every task; each time exactly one of them wins."""
        with self._at_work(Numbers()) as engine:
            submitted = 0
            answered: list[int] = []
            taken_back: list[int] = []
            for _ in range(50):
                for _ in range(4):
                    self._submit(engine, 0, submitted, [submitted])
                    submitted += 1
                for _ in range(2):
                    task = engine.revoke(0)
                    if task is not None:
                        taken_back.append(task)
                answered += [result.task_id for result in engine.collect(0.0)]
            answered += [
                result.task_id for result in self._collect(engine, submitted - len(answered) - len(taken_back))
            ]
            self._nothing_comes(engine)
        assert sorted(answered + taken_back) == list(range(submitted))
        assert answered == sorted(answered)
