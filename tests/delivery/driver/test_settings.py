"""Settings: what cannot work is refused, and what follows from what was asked."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.context import SpawnContext
from typing import Any

import pytest

from feedline.delivery.driver.settings import ENGINES, Settings
from feedline.errors import BadOption
from feedline.schedulers import InOrder, Unordered
from feedline.system.limits import memory_limit


class Threads(SpawnContext):
    """A context whose processes are threads, as MONAI's loader has one."""

    Process = threading.Thread  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "gpu"}, "engine='gpu' is not one of 'auto', 'inline'"),
        ({"engine": "inline", "worker_count": 2}, "engine='inline'.*2 workers"),
        ({"engine": "thread"}, "engine='thread' needs at least one worker"),
        ({"engine": "process"}, "engine='process' needs at least one worker"),
        ({"scheduler": InOrder}, "is not a feedline.abc.Scheduler: subclass it"),
        ({"memory_budget": -1}, "memory_budget=-1 is negative"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message) as caught:
        Settings(**options)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "inline"),
        ({"worker_count": 2}, "process"),
        ({"worker_count": 2, "engine": "thread"}, "thread"),
        ({"engine": "inline"}, "inline"),
        ({"worker_count": 2, "context": multiprocessing.get_context("spawn")}, "process"),
        ({"worker_count": 2, "context": Threads()}, "thread"),
        ({"worker_count": 2, "context": Threads(), "engine": "process"}, "process"),
        ({"context": Threads()}, "inline"),
    ],
)
def test_the_engine_that_is_meant(options: dict[str, Any], name: str) -> None:
    assert Settings(**options).engine_name == name
    assert name in ENGINES


@pytest.mark.parametrize(("workers", "depth", "window"), [(0, 2, 2), (1, 1, 1), (3, 2, 6), (4, 0, 1)])
def test_the_window(workers: int, depth: int, window: int) -> None:
    assert Settings(worker_count=workers, depth=depth).window == window


def test_the_scheduler_that_is_meant() -> None:
    mine = InOrder()
    assert Settings(scheduler=mine, in_order=False).make_scheduler() is mine
    assert type(Settings().make_scheduler()) is InOrder
    assert type(Settings(in_order=False).make_scheduler()) is Unordered
    settings = Settings()
    assert settings.make_scheduler() is not settings.make_scheduler(), "one per epoch: several may run at once"


def test_the_budget() -> None:
    assert Settings(memory_budget=0).budget_bytes() == 0
    assert Settings(memory_budget=5000).budget_bytes() == 5000
    assert Settings().budget_bytes() == memory_limit() // 4
