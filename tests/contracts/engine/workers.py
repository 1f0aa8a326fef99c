"""The contract of engines: replacing, inspecting and killing workers."""

from __future__ import annotations

import os
import unittest

from feedline.errors import WorkerDied
from feedline.types import ResultKind
from tests.contracts.engine.bench import EngineBench
from tests.contracts.engine.workload import Countdown, Numbers, RefuseOnce, WriteNumber, refuse_as_first
from tests.contracts.gate import Journal


class WorkerChapter(EngineBench):
    """Workers start and end without affecting the others."""

    def test_another_worker_takes_the_place_of_one_that_died(self) -> None:
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
                assert engine.revoke(0) is None, "the new worker must not inherit waiting tasks of the old one"
                self._nothing_comes(engine)
                assert self._numbers_of(self._ask(engine, 7, [7])) == [7], "the new worker must answer"
                gate.open()
                others = self._collect(engine, 2)
                assert [(result.worker, self._numbers_of(result)) for result in others] == [(1, [5]), (1, [6])]
                assert sorted(journal.read()) == ["0", "0", "1"], "no other worker may be restarted"

    def test_another_worker_takes_the_place_of_one_that_is_idle(self) -> None:
        with self._folder() as folder:
            journal = Journal(folder / "journal")
            with self._at_work(Numbers(), init=WriteNumber(journal)) as engine:
                for worker in range(2):
                    self._ask(engine, worker, [worker], worker=worker)
                engine.replace(0)
                for worker in range(2):
                    assert self._numbers_of(self._ask(engine, 2 + worker, [5], worker=worker)) == [5]
                self._nothing_comes(engine)  # replacing an idle worker is not a death
                assert sorted(journal.read()) == ["0", "0", "1"]

    def test_a_worker_can_be_replaced_again_and_again(self) -> None:
        with self._at_work(Numbers(), init=refuse_as_first) as engine:
            for number in range(3):
                if number:
                    engine.replace(0)
                self._submit(engine, 0, number, [0])
                (death,) = self._collect(engine, 1)
                assert (death.kind, death.worker) == (ResultKind.DIED, 0)
            assert self._numbers_of(self._ask(engine, 3, [3], worker=1)) == [3]

    def test_a_worker_is_added_and_retired_without_the_others_noticing(self) -> None:
        with self._gate() as gate, self._folder() as folder:
            journal = Journal(folder / "journal")
            with self._at_work(Numbers(gate, held=(5,)), init=WriteNumber(journal)) as engine:
                self._ask(engine, 1, [1], worker=1)
                self._submit(engine, 0, 5, [5])
                self._submit(engine, 0, 6, [6])
                gate.wait_until_reached()
                engine.replace(2)
                assert self._numbers_of(self._ask(engine, 2, [2], worker=2)) == [2], "the new worker must answer"
                count = len(engine.pids)
                engine.retire(2)
                engine.retire(1)
                assert len(engine.pids) == max(0, count - 2)
                assert [engine.pid(worker) for worker in (1, 2)] == [None, None]
                self._nothing_comes(engine)  # retiring a worker is not a death
                engine.replace(1)
                assert self._numbers_of(self._ask(engine, 3, [3], worker=1)) == [3], "it must be replaceable"
                gate.open()
                assert [self._numbers_of(result) for result in self._collect(engine, 2)] == [[5], [6]]
                assert sorted(journal.read()) == ["0", "1", "1", "2"], "no other worker may be restarted"

    def test_a_new_worker_begins_its_stream_from_the_start(self) -> None:
        with self._at_work(Countdown(5), streams=True) as engine:
            first = [self._ask(engine, worker, 2, worker=worker) for worker in range(2)]
            engine.replace(0)
            second = [self._ask(engine, 2 + worker, 2, worker=worker) for worker in range(2)]
            assert [self.batch_of(result).tolist() for result in first] == [[5, 4], [5, 4]]
            assert [self.batch_of(result).tolist() for result in second] == [[5, 4], [3, 2]]

    # -- stacks, process ids and killing -----------------------------------------------------------------------------

    def test_the_stack_of_a_worker_names_the_function_that_it_is_in(self) -> None:
        with self._gate() as gate, self._at_work(Numbers(gate, held=(0,))) as engine:
            self._ask(engine, 1, [1], worker=1)
            self._submit(engine, 0, 0, [0])
            gate.wait_until_reached()
            stacks = [engine.stack(worker) for worker in range(2)]
            if self.tells_stacks:
                assert "pass_through" in (stacks[0] or ""), stacks[0]
                assert "pass_through" not in (stacks[1] or ""), "worker 1 is idle"
            else:
                assert stacks == [None, None], "tells_stacks is False"
            gate.open()
            assert self._numbers_of(*self._collect(engine, 1)) == [0], "reading its stack must not disturb a worker"

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
            engine.replace(0)
            self._ask(engine, 9, [9])  # the process id of a remote worker is known only after a while
            assert engine.pid(0) not in (None, *pids)
            assert engine.pid(1) == pids[1]

    def test_workers_can_be_waited_for_when_the_engine_is_closed(self) -> None:
        with self._at_work(Numbers()) as engine:
            for worker in range(engine.worker_count):
                self._ask(engine, worker, [worker], worker=worker)
            workers = engine.worker_objects
            if not workers:
                raise unittest.SkipTest("worker_objects is empty")
            assert len(workers) == engine.worker_count
            assert all(worker.is_alive() for worker in workers)
            engine.close()
            assert engine.worker_objects == workers
            for worker in workers:
                worker.join(60)
                assert not worker.is_alive()

    def test_a_worker_that_is_killed_dies(self) -> None:
        with self._gate() as gate, self._at_work(Numbers(gate, held=(0,))) as engine:
            self._submit(engine, 0, 0, [0])
            gate.wait_until_reached()
            self._submit(engine, 0, 1, [1])
            assert engine.kill(0) == self.has_processes, "kill() must return has_processes"
            if not self.has_processes:
                gate.open()
                assert [self._numbers_of(result) for result in self._collect(engine, 2)] == [[0], [1]]
                return
            (death,) = self._collect(engine, 1)
            assert (death.kind, death.worker) == (ResultKind.DIED, 0)
            assert type(death.payload) is WorkerDied
            assert death.payload.was_ready, "the worker was ready"
            assert self._numbers_of(self._ask(engine, 2, [2], worker=1)) == [2], "the other worker must continue"
            engine.replace(0)
            assert self._numbers_of(self._ask(engine, 3, [3])) == [3]
