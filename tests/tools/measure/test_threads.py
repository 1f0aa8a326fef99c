from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from feedline.system.timing import OnThreads
from feedline.tools.measure import threads
from feedline.tools.measure.threads import lock_in, try_threads
from tests.tools.advise import slow_datasets


class Locked:
    """Has a lock in its class."""

    lock = threading.Lock()


def test_locks_are_found_in_a_dataset_its_class_and_its_module() -> None:
    assert lock_in(Locked()) == "Locked.lock"
    assert lock_in(slow_datasets.OwnLock()) == "dataset.lock"


def on_given_threads(
    rates: dict[int, list[float]], awake: float = 1.0, computed_s: float = 1e3
) -> Callable[..., OnThreads]:
    """Replace real threads: each round returns the next rate of a list."""

    def run(calls: list[Any], until_s: float, **_: Any) -> OnThreads:
        return OnThreads(rates[len(calls)].pop(0), computed_s, awake=awake)

    return run


@pytest.mark.parametrize(("awake", "speedup"), [(1.0, 2.0), (0.1, 1.98)])
def test_rates_are_medians_of_alternating_rounds(awake: float, speedup: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The speedup of threads that compute is that of threads with a core each."""
    rates = {1: [100.0, 5.0, 102.0], 2: [200.0, 198.0, 1.0]}
    monkeypatch.setattr(threads, "on_threads", on_given_threads(rates, awake))
    found = try_threads(lambda index: index, [1, 2, 3], (1, 2), 0.0, time.monotonic() + 600)
    assert found.rates == {1: 100.0, 2: 198.0}, "rounds disturbed by other programs do not count"
    assert found.speedup == speedup


def test_errors_on_threads_are_kept_and_the_switch_interval_is_restored() -> None:
    def fail(index: int) -> None:
        raise RuntimeError("not here")

    before = sys.getswitchinterval()
    found = try_threads(fail, [1, 2, 3], (1, 2), 0.0, time.monotonic() + 60)
    assert found.rates == {}
    assert "RuntimeError: not here" in found.failure
    assert sys.getswitchinterval() == before
