from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from feedline.system.timing import OnThreads
from feedline.tools.measure import threads
from feedline.tools.measure.threads import held_locks, try_threads
from tests.tools.advise import slow_datasets
from tests.tries import try_again

LOCK = threading.Lock()


class ModuleLock(slow_datasets.OwnLock):
    """Holds a lock of its module."""

    def __getitem__(self, index: int) -> None:
        with LOCK:
            time.sleep(2e-3)


@pytest.mark.parametrize(
    ("kind", "path", "is_held"),
    [
        (slow_datasets.OwnLock, "dataset.lock", True),
        (ModuleLock, f"{__name__}.LOCK", True),
        (slow_datasets.FreeLock, "dataset.lock", False),
    ],
)
def test_locks_that_samples_hold_are_found(kind: type[slow_datasets.OwnLock], path: str, is_held: bool) -> None:
    dataset = kind()

    def check() -> None:
        shares = dict(held_locks(dataset, dataset.__getitem__, [0, 1]))
        assert (shares[path] > 0.5) == is_held

    try_again(check)


def on_given_threads(rates: dict[int, list[float]], computed_s: float = 1e3) -> Callable[..., OnThreads]:
    """Replace real threads: each round returns the next rate of a list."""

    def run(calls: list[Any], until_s: float, **_: Any) -> OnThreads:
        return OnThreads(rates[len(calls)].pop(0), computed_s, awake=1.0)

    return run


def test_rates_are_medians_of_alternating_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {1: [100.0, 5.0, 102.0], 2: [200.0, 198.0, 1.0]}
    monkeypatch.setattr(threads, "on_threads", on_given_threads(rates))
    found = try_threads(lambda index: index, [1, 2, 3], (1, 2), 0.0, time.monotonic() + 600)
    assert found.rates == {1: 100.0, 2: 198.0}, "rounds disturbed by other programs do not count"
    assert found.speedup == 2.0


def test_nothing_is_said_about_a_lock_if_a_library_computes_on_threads_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {1: [100.0] * 3, 2: [100.0] * 3}
    monkeypatch.setattr(threads, "on_threads", on_given_threads(rates, computed_s=1e-9))
    monkeypatch.setattr("time.process_time", itertools.count().__next__)
    assert try_threads(lambda index: index, [1, 2, 3], (1, 2), 0.0, time.monotonic() + 600).speedup is None


def test_errors_on_threads_are_kept_and_the_switch_interval_is_restored() -> None:
    def fail(index: int) -> None:
        raise RuntimeError("not here")

    before = sys.getswitchinterval()
    found = try_threads(fail, [1, 2, 3], (1, 2), 0.0, time.monotonic() + 60)
    assert found.rates == {}
    assert "RuntimeError: not here" in found.failure
    assert sys.getswitchinterval() == before
