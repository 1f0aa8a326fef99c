from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from feedline.tools.measure import steady, sweep
from feedline.tools.measure.harness import Entry, Figures, Outcome, Settings, Side, run_rounds


def test_both_loaders_get_the_same_arguments() -> None:
    found = list(sweep.Grid([0, 2, 2], ["process", "thread"], prefetch=[2, 4], pins=[False, True]).settings())
    cases = [(case["workers"], case["prefetch"], case["pinned"], side.name) for case, side, _ in found]
    assert len(cases) == len(set(cases)) == 2 * 2 + 2 * 2 * 3
    assert (0, "-", "yes", "feedline/inline") in cases
    assert (2, 4, "no", "torch") in cases
    for case, _, options in found:
        assert options["pin_memory"] is (case["pinned"] == "yes")
        assert options.get("prefetch_factor", "-") == case["prefetch"]


def test_options_that_are_not_given_keep_the_loaders_defaults() -> None:
    (case, side, options), *_ = sweep.Grid([1], ["thread"]).settings()
    assert (case, side) == ({"workers": 1}, Side("torch"))
    assert options == {"num_workers": 1, "persistent_workers": True}


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(3000, dtype=torch.bfloat16),
        torch.zeros(0),
        torch.zeros(2, 3).T,
        torch.eye(2).to_sparse(),
        {"a": [np.zeros(9), np.array([None])], "b": ("text", 3, None)},
        np.zeros((2, 0)),
    ],
)
def test_touch_accepts_any_batch(batch: Any) -> None:  # Any: batches of every kind
    steady.touch(batch)


def test_the_error_when_no_setting_could_be_measured_names_the_reason() -> None:
    failures = {"torch workers=1": sweep.Failure("OSError: gone", "in open_it"), "b": sweep.Failure("c", "d")}
    raised, late = sweep.nothing_measured(failures, 5.0), sweep.nothing_measured({}, 0.5)
    assert (raised.reason, raised.traceback) == ("raises", "in open_it")
    assert "torch workers=1: OSError: gone" in str(raised)
    assert late.reason == "hangs"
    assert "within 0.5 s" in str(late)


def test_only_whole_rounds_are_compared() -> None:
    rounds: list[list[Figures]] = [[{"samples_per_s": 1.0}] * 3, [{"samples_per_s": 2.0}] * 2, [{}], []]
    outcomes = [Outcome({"workers": n}, Side("torch"), own) for n, own in enumerate(rounds)]
    assert [(found.case["workers"], len(found.rounds)) for found in sweep.Measured(outcomes).complete()] == [
        (0, 2),
        (1, 2),
    ]


def test_no_measurement_starts_that_would_exceed_the_time_limit() -> None:
    """Each measurement advances a fake clock by five seconds."""
    now = [0.0]

    def measured(seconds: float) -> Callable[[], Figures]:
        def measure() -> Figures:
            now[0] += seconds
            return {"samples_per_s": 1.0}

        return measure

    kept: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feedline.tools.measure.harness.time.monotonic", lambda: now[0])
        outcomes = run_rounds(
            [Entry({"workers": n}, Side("torch"), measured(5.0)) for n in range(2)],
            Settings(rounds=10),
            keep=lambda found: kept.append(sum(len(one.rounds) for one in found)),
            until_s=18.0,
        )
    assert now[0] == 15.0
    assert [len(one.rounds) for one in outcomes] == [1, 2]
    assert kept == [1, 2, 3]


def test_equal_exceptions_are_reported_once() -> None:
    """One damaged sample, which every setting meets; torch wraps what its workers raise."""
    text = "Caught ValueError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n"
    failures = {
        "torch workers=2": sweep.Failure.of(ValueError(f"{text}ValueError: sample 13 is damaged\n")),
        "feedline/process workers=2": sweep.Failure.of(ValueError("sample 13 is damaged\nAbout sample 13.")),
        "feedline/thread workers=2": sweep.Failure.of(OSError("full")),
    }
    assert sweep.skipped(failures).splitlines() == [
        "Skipped torch workers=2, feedline/process workers=2: ValueError: sample 13 is damaged",
        "Skipped feedline/thread workers=2: OSError: full",
    ]
