"""The formula behind all advice on the number of workers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.insight.worker_model import LEAST_GAIN, Load

times = st.floats(1e-6, 10.0)
loads = st.builds(
    lambda make, step, share, cores, handover: Load(make, step, make * share, cores, handover),
    times, times, st.floats(0.0, 4.0), st.sampled_from([1, 2, 4, 16, math.inf]), st.floats(1e-6, 1e-2),
)  # fmt: skip


@given(loads)
def test_workers_are_advised_only_if_they_gain(load: Load) -> None:
    fewest = load.fewest()
    if fewest:
        assert load.make_s > 2 * load.handover_s
        assert load.rate(fewest) >= LEAST_GAIN * load.rate(0)
        assert fewest <= load.most


@given(loads, st.integers(1, 64))
def test_no_other_number_of_workers_is_clearly_faster_than_the_advised_one(load: Load, other: int) -> None:
    fewest = load.fewest()
    if not load.is_cheap and not math.isinf(load.cores):
        assert load.rate(other) <= max(load.rate(fewest), load.rate(0)) * max(LEAST_GAIN, 1.5 / load.most + 1)


@given(loads, st.integers(1, 64))
def test_the_predicted_rate_never_falls_with_more_workers(load: Load, count: int) -> None:
    assert load.rate(count + 1) >= load.rate(count)


@pytest.mark.parametrize(
    ("what", "load", "fewest"),
    [
        # Measured on two cores: 3,150 batches/s without workers, 1,125 with six; "auto" chose none.
        ("0.3 ms on 2 cores", Load(0.3e-3, 0.03e-3, 0.3e-3, 2), 0),
        ("0.3 ms on 16 cores", Load(0.3e-3, 0.03e-3, 0.3e-3, 16), 0),
        ("0.3 ms of sleep", Load(0.3e-3, 0.03e-3, 0.01e-3, 16), 0),
        ("a slow loop", Load(0.3e-3, 0.1, 0.3e-3, 16), 0),
        ("computing on 8 cores", Load(0.1, 0.05, 0.1, 8), 3),
        ("computing on 2 cores", Load(0.1, 0.02, 0.1, 2), 2),
        ("on one core, beside a GPU", Load(0.1, 0.1, 0.1, 1), 1),
        ("on one core that is full", Load(0.1, 1e-5, 0.1, 1), 0),
        ("sleeping on 2 cores", Load(0.1, 0.02, 0.001, 2), 6),
        ("half sleeping on 2 cores", Load(0.1, 0.005, 0.05, 2), 4),
        ("on four threads each", Load(0.1, 0.01, 0.4, 8), 2),
        ("a hand-over that was measured", Load(0.01, 0.001, 0.01, 16, handover_s=0.006), 0),
    ],
)
def test_the_fewest_workers_that_suffice(what: str, load: Load, fewest: int) -> None:
    assert load.fewest() == fewest, what
