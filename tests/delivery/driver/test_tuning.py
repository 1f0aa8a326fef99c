"""Measurements during an epoch and the resulting decisions, with a fake engine."""

from __future__ import annotations

import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from feedline.delivery.config import Config
from feedline.delivery.driver import tuning as module
from feedline.delivery.driver.driver import Driver
from feedline.delivery.driver.tuning import START, TunedDriver, Tuning
from feedline.delivery.machine.controller import Measurement

SLOW = Measurement(batches=20, seconds=2.0, wait_s=1.9, busy_s=0.2, cpu_share=0.1)


def test_settings_stay_the_same_while_the_worker_count_changes() -> None:
    tuning = Tuning(2, 8)
    settings = tuning.applied_to(Config(worker_count=2))
    assert tuning.decide(SLOW)
    assert tuning.count == 4
    assert tuning.applied_to(Config(worker_count=2)) == settings
    assert (settings.max_workers, settings.window, settings.most_window) == (8, 4, 16)


def test_fixing_the_worker_count_logs_why() -> None:
    tuning = Tuning(2, 8)
    tuning.fix(0, "0 workers: it is tiny.")
    assert tuning.applied_to(Config(worker_count=2)).worker_count == 0
    assert tuning.applied_to(Config(worker_count=2)).engine_name == "inline"
    assert tuning.log == ["0 workers: it is tiny."]


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.levelno, record.getMessage()))


def test_each_decision_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, logger = Listener(), logging.getLogger("feedline")
    monkeypatch.setattr(logger, "handlers", [listener])
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]  # of levels, which were changed directly
    tuning = Tuning(2, 8)
    tuning.say("2 workers to begin with.")
    tuning.decide(SLOW)
    tuning.is_refused(1)
    assert len(tuning.log) == 3
    assert listener.records == [(logging.INFO, line) for line in tuning.log]


def test_a_copy_starts_its_own_tuning() -> None:
    tuning = Tuning(2, 8)
    tuning.is_begun = True
    tuning.count = 6
    twin = tuning.copy()
    assert (twin.count, twin.is_begun) == (2, True)
    twin.say("something")
    assert tuning.log == []
    assert pickle.loads(pickle.dumps(tuning)).count == 6


def test_ranks_on_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Tuning.from_cores().most
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Tuning.from_cores().most == alone // 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert Tuning.from_cores().most == START, "never below the starting count"


def driver_of(*pids: int) -> Any:
    driver: Any = TunedDriver.__new__(TunedDriver)  # only its engine is used
    driver.engine = SimpleNamespace(pids=list(pids))
    return driver


def test_additional_workers_take_at_most_half_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "own_bytes", lambda pid: 1 << 20)
    monkeypatch.setattr(module, "physical_bytes", lambda: (1 << 30, 8 << 20))
    assert driver_of(1, 2)._room() == 2 + 4
    assert driver_of()._room() > 1000, "threads have no memory of their own"


def test_waiting_for_a_core_does_not_count_as_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "scheduled_s", {7: (1.0, 0.5), 8: (2.0, 0.25)}.__getitem__)
    assert driver_of(7, 8)._scheduled_s() == (3.0, 0.75)


def test_the_count_drops_to_the_active_workers_if_the_engine_refuses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of()
    driver._flights, driver.tuning = SimpleNamespace(active=[0, 1]), Tuning(4, 8)
    monkeypatch.setattr(Driver, "_collect", lambda *_: None)
    driver._collect(None, None)
    assert driver.tuning.count == 2
    assert "refused to start more" in driver.tuning.log[-1]
