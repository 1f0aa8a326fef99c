from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from feedline.system.timing import OnThreads
from feedline.tools.measure import threads
from feedline.tools.measure.threads import held_locks, try_threads
from tests.tools.advise import diseases
from tests.tries import try_again


@pytest.mark.parametrize(
    ("kind", "path", "is_held"),
    [
        (diseases.OwnLock, "dataset.lock", True),
        (diseases.ModuleLock, f"{diseases.__name__}.LOCK", True),
        (diseases.FreeLock, "dataset.lock", False),
    ],
)
def test_locks_that_samples_hold_are_found(kind: type[diseases.Rows], path: str, is_held: bool) -> None:
    dataset = kind()

    def check() -> None:
        shares = {lock.path: lock.share for lock in held_locks(dataset, dataset.__getitem__, [0, 1])}
        assert (shares[path] > 0.5) == is_held

    try_again(check)


def on_given_threads(rates: dict[int, list[float]]) -> Callable[..., OnThreads]:
    """Replace real threads: each round returns the next rate of a list."""

    def run(calls: list[Any], until_s: float, **_: Any) -> OnThreads:
        return OnThreads(rates[len(calls)].pop(0), 0.1, awake=1.0)

    return run


def test_rates_are_medians_of_alternating_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {1: [100.0, 5.0, 102.0], 2: [200.0, 198.0, 1.0]}
    monkeypatch.setattr(threads, "on_threads", on_given_threads(rates))
    found = try_threads(lambda index: index, [1, 2, 3], (1, 2), 0.0, time.monotonic() + 600)
    assert found.rates == {1: 100.0, 2: 198.0}, "rounds disturbed by other programs do not count"
    assert found.speedup(2) == 2.0
    assert found.speedup(8) is None


def test_errors_on_threads_are_kept_and_the_switch_interval_is_restored() -> None:
    def fail(index: int) -> None:
        raise RuntimeError("not here")

    before = sys.getswitchinterval()
    found = try_threads(fail, [1, 2, 3], (1, 2), 0.0, time.monotonic() + 60)
    assert found.rates == {}
    assert "RuntimeError: not here" in found.failure
    assert sys.getswitchinterval() == before
