"""Measurements of a running loader."""

from __future__ import annotations

import os
import signal
import tracemalloc
from typing import Any

import pytest

from feedline.insight import observer as module
from feedline.insight.observer import Observer
from feedline.insight.period import period_of
from feedline.types import TaskNotes

FACTS = (0, -1, 4, 64, 0, 0, 0, 0, 0, 0, -1, 0, 1, 0)


class Clock:
    """Replaces the module `time`; time passes only when a test says so."""

    now = 10**12

    def monotonic_ns(self) -> int:
        return self.now

    def time(self) -> float:
        return self.now / 1e9


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Loop:
    """A training loop on a fake clock, with the calls that a loader makes to its observer."""

    def __init__(self, observer: Observer, step: int, wait: int, *, begins: bool = True) -> None:
        self.observer, self.step, self.wait = observer, step, wait
        self.clock: Any = vars(module)["time"]
        self.batches = 0
        self.rows = 0
        if begins:
            observer.begin(0, self.now, 0)

    @property
    def now(self) -> int:
        now: int = self.clock.now
        return now

    def run(self, count: int, wait: int | None = None) -> None:
        observer = self.observer
        for _ in range(count):
            asked = self.now
            got = asked + (self.wait if wait is None else wait)
            self.batches += 1
            if observer.got:
                observer.write(FACTS, asked, got, (0, 0, 0, 0), self.batches)
                self.rows += 1
            else:
                observer.last_s = got / 1e9
                observer.waited_s += (got - asked) / 1e9
                if self.batches >= observer.due:
                    observer.got = got
            self.clock.now = got + self.step


def test_every_long_batch_has_a_row() -> None:
    loop = Loop(Observer(), step=5_000_000, wait=1_000_000)
    loop.run(500)
    assert loop.rows == 500
    epoch, last, total = loop.observer.totals(loop.batches)
    assert (epoch.batches, last, total.batches, total.samples) == (500, None, 500, 2000)
    assert epoch.stages["wait"].mean == 1_000_000
    assert epoch.body.mean == 5_000_000
    assert epoch.body.count == 499, "there is none before the first batch"


@pytest.mark.parametrize("step", [5_000, 50_000])
def test_short_batches_have_few_rows_and_correct_statistics(step: int) -> None:
    loop = Loop(Observer(), step=step, wait=step // 2)
    loop.run(10_000)
    assert loop.rows < 10_000 * step / 1_500_000 + 50
    epoch, _, _ = loop.observer.totals(loop.batches)
    assert epoch.batches == 10_000, "every batch is counted"
    period = period_of(epoch, 0)
    assert period.stall == pytest.approx(1 / 3, rel=0.001), "exact, except for the time before the start"
    assert period.stages["wait"].mean == pytest.approx(step / 2e9)
    assert period.samples == 40_000
    assert period.body.mean == pytest.approx(step / 1e9, rel=0.001)


def test_the_ten_slowest_samples_are_kept() -> None:
    observer = Observer()
    for number in range(50):
        observer.add_notes(TaskNotes(slow=[((number * 7919) % 50 * 1000, {"index": number})]), worker=number % 2)
    observer.add_notes(TaskNotes(slow=[(47_500, {"index": 1})]), worker=0)
    observer.add_notes(TaskNotes(slow=[(100, {"index": 1})]), worker=0)
    slowest = observer.slowest()
    assert [slow.index for slow in slowest].count({"index": 1}) == 1, "each sample once"
    slowest = tuple(slow for slow in slowest if slow.index != {"index": 1})
    assert [round(slow.seconds * 1e6) for slow in slowest] == list(range(49, 40, -1))
    assert isinstance(slowest[0].index, dict)


def test_every_batch_has_a_row_while_a_recording_is_active() -> None:
    observer = Observer()
    loop = Loop(observer, step=5_000, wait=5_000)
    loop.run(1000)
    kept = observer.record()
    loop.run(2)
    before = loop.rows
    loop.run(1500)
    assert loop.rows == before + 1500
    observer.add_notes(TaskNotes({"decode": 123}), 0)
    loop.run(1)
    observer.end(loop.batches, loop.now)
    recording = observer.recorded(kept)
    assert len(recording.rows["got"]) in (1502, 1503)
    assert (recording.rows["weight"][1:] == 1).all()
    assert recording.stages == {"decode": [[len(recording.rows["got"]) - 1, 123]]}
    assert recording.rows["got"].min() < 60_000_000_000, "times are relative to the start of the recording"
    loop.run(1000)
    assert loop.rows < before + 2100, "no longer after the recording"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_batches() -> None:
    observer = Observer()

    def run(epochs: int) -> None:
        for epoch in range(epochs):
            loop = Loop(observer, step=3_000_000, wait=3_000_000)
            loop.batches = 100 * epoch
            observer.begin(epoch, loop.now, loop.batches)
            for number in range(100):
                observer.add_notes(TaskNotes({f"file {epoch} {number}": 1000}, [(number, epoch)]), 0)
                loop.run(1)
            observer.end(loop.batches, loop.now)
            observer.totals(loop.batches)

    run(10)
    tracemalloc.start()
    try:
        run(10)
        before = tracemalloc.get_traced_memory()[0]
        run(20)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 65_000, "for 2,000 batches, each with a stage of a different name"
    stages = observer.totals(100)[2].stages
    assert len(stages) <= 65
    assert stages["other"].count > 3_000


def test_a_lock_held_during_a_fork_is_free_in_the_child() -> None:
    observer = Observer()
    loop = Loop(observer, step=1000, wait=1000)
    loop.run(5)
    with observer._lock:  # as another thread might
        child = os.fork()
        if not child:
            signal.alarm(60)
            try:
                os._exit(0 if observer.totals(5)[0].batches == 5 else 1)
            finally:
                os._exit(2)  # also if it raises: this process must not run the other tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
