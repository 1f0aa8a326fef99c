"""The engine without workers."""

from __future__ import annotations

import pytest

from feedline.abc import Engine
from feedline.collate import default
from feedline.engines.inline import InlineEngine
from feedline.errors import BadOption
from feedline.frameworks.numpy import NumpyFramework
from feedline.testing import EngineContract
from feedline.testing.engine import Numbers
from feedline.transport.arena import Arena
from feedline.types import DatasetKind, Task, WorkerSpec


class TestInline(EngineContract):
    has_workers = False

    def make_engine(self) -> Engine:
        return InlineEngine()


class TestInlineWithAnArena(EngineContract):
    has_workers = False

    def make_engine(self) -> Engine:
        return InlineEngine(Arena(4, shared=False, budget=1 << 20))


def test_workers_are_refused() -> None:
    spec = WorkerSpec(Numbers(), DatasetKind.MAP, default, NumpyFramework(), worker_count=2, base_seed=0)
    with pytest.raises(BadOption, match="no workers, but 2"):
        InlineEngine().open(spec)


def test_a_task_runs_when_it_is_collected_and_not_before() -> None:
    calls: list[int] = []

    class Noting(Numbers):
        def __getitem__(self, index: int) -> int:  # type: ignore[override]
            calls.append(index)
            return index

    engine = InlineEngine()
    engine.open(WorkerSpec(Noting(), DatasetKind.MAP, default, NumpyFramework(), worker_count=0, base_seed=0))
    for number in range(3):
        engine.submit(0, Task(number, [number]))
    assert calls == []
    for number in range(3):
        assert [result.task_id for result in engine.collect(None)] == [number]
        assert calls == list(range(number + 1))
    assert engine.collect(None) == []
