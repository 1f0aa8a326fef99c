"""The warning about loaders that restart their workers in every short epoch."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from feedline import Loader
from feedline.delivery.machine import counters
from feedline.errors import PerformanceWarning


def warned_after(passes: list[tuple[float, float]]) -> list[int]:
    """Return the passes after which there was a warning."""
    warned = []
    counter = counters.Counters()
    for number, (pass_s, start_s) in enumerate(passes):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            counter.passed(pass_s, start_s)
        warned += [number] * len(caught)
    return warned


def test_it_warns_once_when_starting_workers_has_cost_seconds() -> None:
    assert warned_after([(0.1, 0.08)] * 300) == [63]


def test_the_first_pass_does_not_count() -> None:
    assert warned_after([(9.0, 9.0), (0.1, 0.08)]) == []


def test_one_slow_start_does_not_warn() -> None:
    assert warned_after([(0.1, 0.08), (9.0, 8.9)]) == []


def test_long_passes_do_not_warn() -> None:
    assert warned_after([(10.0, 0.5)] * 300) == []


@pytest.mark.slow
def test_a_loader_with_many_short_epochs_names_the_option_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_LOST_S", 0.0)
    monkeypatch.setattr(counters, "_SHARE", 0.0)
    samples = np.arange(4)
    loader = Loader(samples, 4, workers=1)
    for _ in range(2):
        assert len(list(loader)) == 1
    with pytest.warns(PerformanceWarning, match="persistent_workers=True"):
        assert len(list(loader)) == 1
    assert len(list(loader)) == 1
    kept = Loader(samples, 4, workers=1, persistent=True)
    for _ in range(3):
        assert len(list(kept)) == 1
    kept.close()
