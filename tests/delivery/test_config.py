"""Config: invalid combinations are rejected, and what follows from the options."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.context import SpawnContext
from typing import Any

import pytest

from feedline.delivery.config import ENGINES, Config
from feedline.errors import BadOption
from feedline.schedulers import InOrder, Unordered
from feedline.system.limits import memory_limit


class Threads(SpawnContext):
    """A context whose processes are threads, like the one of MONAI's loader."""

    Process = threading.Thread  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "gpu"}, "engine='gpu' is not one of 'auto', 'inline'"),
        ({"engine": "inline", "worker_count": 2}, "engine='inline'.*2 workers"),
        ({"engine": "thread"}, "engine='thread' needs at least one worker"),
        ({"engine": "process"}, "engine='process' needs at least one worker"),
        ({"scheduler": InOrder}, "is not a feedline.abc.Scheduler: subclass it"),
    ],
)
def test_invalid_config_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message) as caught:
        Config(**options)
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
def test_the_engine_follows_from_the_options(options: dict[str, Any], name: str) -> None:
    assert Config(**options).engine_name == name
    assert name in ENGINES


def test_the_scheduler_follows_from_the_options() -> None:
    mine = InOrder()
    assert Config(scheduler=mine, in_order=False).make_scheduler() is mine
    assert type(Config().make_scheduler()) is InOrder
    assert type(Config(in_order=False).make_scheduler()) is Unordered
    config = Config()
    assert config.make_scheduler() is not config.make_scheduler(), "one per epoch, since several epochs may run at once"


def test_the_memory_budget_is_a_quarter_of_the_limit_by_default() -> None:
    assert Config(memory_budget=0).budget_bytes() == 0
    assert Config(memory_budget=5000).budget_bytes() == 5000
    assert Config().budget_bytes() == memory_limit() // 4
