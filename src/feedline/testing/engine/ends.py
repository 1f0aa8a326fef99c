"""The contract of engines: the end."""

from __future__ import annotations

import time

from feedline.abc import Engine
from feedline.testing.engine.bench import EngineBench
from feedline.testing.engine.workload import Numbers
from feedline.testing.gate import Journal


class EndChapter(EngineBench):
    """`close` may come at any moment, and waits for nobody."""

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
