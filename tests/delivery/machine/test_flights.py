"""How many tasks are in flight, with an engine and a clock that tests control; and how long tasks take."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data

import feedline
from feedline.abc import Scheduler
from feedline.delivery.machine import machine
from feedline.delivery.machine.flights import Pace
from feedline.schedulers import InOrder, Unordered
from tests.delivery.stepping import Bench, numbers


@pytest.mark.parametrize("step_s", [0.0, 0.2, 5.0])
@pytest.mark.parametrize("scheduler", [InOrder, Unordered])
def test_with_equal_work_the_window_is_never_exceeded(step_s: float, scheduler: type[Scheduler]) -> None:
    with Bench(1.0, workers=3, depth=2, scheduler=scheduler()) as bench:
        assert bench.in_flight() == 6, "full from the start"
        for _ in bench.batches:
            assert bench.in_flight() <= 6
            bench.clock.now_s += step_s
        assert bench.counters.run_ahead == 0
        assert bench.counters.relieved == 0
        if scheduler is InOrder:
            assert [worker for worker, _ in bench.engine.submitted] == [number % 3 for number in range(40)]


def test_the_plan_is_read_only_as_far_as_the_window() -> None:
    read = 0

    def plan() -> Iterator[list[int]]:
        nonlocal read
        for number in range(100):
            read += 1
            yield [number]

    with Bench(1.0, workers=2, depth=3, plan=plan()) as bench:
        assert read == 6
        next(bench.batches)
        assert read == 7


def test_stragglers_cost_little_more_than_their_own_time() -> None:
    """One batch in seven takes thirteen times as long. Ideally workers never wait."""
    draw = random.Random(0)
    table = [0.216 if draw.random() < 0.15 else 0.016 for _ in range(1000)]
    with Bench(lambda task: table[task.indices[0]], count=1000, workers=4, depth=2) as bench:
        begun = bench.clock.now_s
        assert bench.run() == numbers(1000)
        assert bench.counters.run_ahead > 50
        assert bench.clock.now_s - begun < 1.1 * sum(table) / 4


# -- a deeper window ---


class OwnSampler:
    """A custom sampler."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(2000))

    def __len__(self) -> int:
        return 2000


@pytest.mark.parametrize(
    ("options", "width", "deep"),
    [
        pytest.param({"shuffle": True}, 16, 32, id="small"),
        pytest.param({}, 250, 12, id="what fits messages"),
        pytest.param({}, 1000, 2, id="large batches"),
        pytest.param({"prefetch_factor": 3}, 16, 3, id="depth given"),
        pytest.param({"sampler": OwnSampler()}, 16, 2, id="own sampler"),
        pytest.param({"shuffle": True, "generator": torch.Generator()}, 16, 2, id="generator of the user's"),
        pytest.param({"shuffle": True, "seed": 1}, 16, 32, id="seed"),
        pytest.param({"in_order": False}, 16, 2, id="unordered"),
        pytest.param({"engine": "thread"}, 16, 2, id="threads"),
    ],
)
def test_small_fast_batches_are_fetched_further_ahead(
    options: dict[str, Any], width: int, deep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_SHORT_S", 10.0)  # however busy this machine is
    dataset = torch.utils.data.TensorDataset(torch.zeros(2000, width))
    batches: Any = iter(feedline.DataLoader(dataset, 8, num_workers=2, **options))
    for _ in range(100):
        next(batches)
    assert batches._batches.driver.machine.window == 2 * deep
    assert len(list(batches)) == 150


def test_a_deep_window_is_refilled_when_a_quarter_of_it_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_SHORT_S", 10.0)
    batches: Any = iter(feedline.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2000, 4)), 8, num_workers=2))
    for _ in range(100):
        next(batches)
    epoch = batches._batches.driver.epoch
    under_way = []
    for _ in range(64):
        next(batches)
        under_way.append(epoch.sent - epoch.done)
    # Four times, unless a batch is late: then more tasks are assigned meanwhile.
    assert 1 <= sum(after > before for before, after in itertools.pairwise(under_way)) <= 12
    assert min(under_way) > 32


# -- how long tasks take ---


@pytest.mark.parametrize("durations", [[3, 3, 500, 4, 3], [50] * 40 + [3] * 41])
def test_neither_one_slow_task_nor_old_ones_change_the_typical_time(durations: list[int]) -> None:
    pace = Pace()
    for busy_s in durations:
        pace.note(busy_s * 10**9)
        typical_s = pace.typical_s()
    assert typical_s == 3.0
