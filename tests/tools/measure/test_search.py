"""Which setting is chosen, and why. The search is pure, so datasets are functions here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.insight.worker_model import LEAST_GAIN, Load
from feedline.tools.measure.search import INLINE, STALL, Choice, Limits, OutOfTime, Rate, Setting, search

LIMITS = Limits(16, 1000, "that is all there is")
BATCH = 32

Speed = Callable[[Setting], float | None]
"""Batches per second of a setting; None if it cannot be measured."""


def searched(speed: Speed, *, step_s: float = 0.0, limits: Limits = LIMITS) -> Choice | None:
    def measure(setting: Setting) -> Rate | None:
        made = speed(setting)
        if made is None:
            return None
        if setting.workers == 0:  # makes a batch, trains, makes the next
            took_s = 1 / made + step_s
            return Rate(BATCH / took_s, 1 / made / took_s)
        taken = min(made, 1 / step_s) if step_s else made
        return Rate(taken * BATCH, max(0.0, 1 - taken * step_s))

    return search(measure, limits, step_s=step_s)


@dataclass(frozen=True)
class Chosen:
    """A choice of a complete search."""

    setting: Setting
    reasons: list[str]
    tried: dict[Setting, Rate]


def chosen(speed: Speed, *, step_s: float = 0.0, limits: Limits = LIMITS) -> Chosen:
    found = searched(speed, step_s=step_s, limits=limits)
    assert found is not None
    assert found.setting is not None
    assert found.missing is None
    return Chosen(found.setting, found.reasons, found.tried)


def scaling(each: float, *, until: float = 1e9, threads: float = 1.0) -> Speed:
    """Workers that make `each` batches per second, up to a number of workers; threads make a multiple of that."""
    return lambda s: each * min(max(s.workers, 1), until) * (threads if s.engine == "thread" else 1.0)


def test_workers_that_gain_nothing_are_not_chosen() -> None:
    choice = chosen(scaling(10, until=6))
    assert choice.setting == Setting("process", 6)
    assert any("More gain little" in reason for reason in choice.reasons)
    assert any("Fewer are not enough" in reason for reason in choice.reasons)


def test_no_workers_are_chosen_if_they_slow_the_dataset_down() -> None:
    choice = chosen(lambda setting: 1000.0 if setting == INLINE else 300.0)
    assert choice.setting == INLINE
    assert choice.reasons[-1] == "Workers at their best: 9,600 samples/s with 1 worker (process) (-70%)."
    assert choice.setting.code("dataset, batch_size=8") == "DataLoader(dataset, batch_size=8, num_workers=0)"


def test_the_limit_is_given_as_a_reason() -> None:
    choice = chosen(scaling(10), limits=Limits(3, 100, "there are 3 cores"))
    assert choice.setting == Setting("process", 3)
    assert "More were not tried: there are 3 cores." in choice.reasons
    assert max(setting.workers for setting in choice.tried) == 3


def test_threads_are_chosen_only_if_fewer_suffice_or_they_are_faster() -> None:
    assert chosen(scaling(10, until=4)).setting.engine == "process"
    assert chosen(scaling(10, until=4, threads=(1 + LEAST_GAIN) / 2)).setting.engine == "process"
    assert chosen(scaling(10, until=4, threads=1.5)).setting == Setting("thread", 4)
    assert chosen(scaling(10, threads=2), step_s=1 / 79).setting == Setting("thread", 4)


@pytest.mark.parametrize(("needed", "workers"), [(9, 1), (10, 1), (11, 2), (35, 4), (50, 5), (159, 16)])
def test_the_fewest_workers_that_keep_up_are_chosen(needed: float, workers: int) -> None:
    choice = chosen(scaling(10), step_s=1 / needed)
    assert choice.setting == Setting("process", workers)
    assert "training waits for 0.0%" in choice.reasons[0]


def test_no_workers_are_chosen_if_batches_are_cheap_beside_the_step() -> None:
    choice = chosen(scaling(10_000), step_s=0.1)
    assert choice.setting == INLINE
    assert list(choice.tried) == [INLINE], "nothing else needs to be tried"


def test_the_reason_says_if_no_setting_keeps_up_with_the_step() -> None:
    choice = chosen(scaling(10, until=4), step_s=1 / 100)
    assert choice.setting == Setting("process", 4)
    assert "Nothing keeps up with steps of 10 ms" in choice.reasons[0]
    assert "60%" in choice.reasons[0]


def test_prefetch_is_raised_if_that_gains_and_fits_into_memory() -> None:
    def speed(setting: Setting) -> float:
        return scaling(10, until=4)(setting) * {2: 1.0, 4: 1.3, 8: 1.31}[setting.depth]  # type: ignore[operator]

    assert chosen(speed).setting == Setting("process", 4, 4)
    assert chosen(speed, limits=Limits(16, 15, "memory")).setting == Setting("process", 4)
    assert chosen(speed).setting.code("d").endswith('num_workers=4, engine="process", prefetch_factor=4)')


def test_settings_that_cannot_be_measured_are_left_out() -> None:
    choice = chosen(lambda setting: None if setting.engine == "process" else scaling(10, until=2)(setting))
    assert choice.setting == Setting("thread", 2)
    assert searched(lambda setting: None) is None
    only = chosen(lambda setting: 5.0 if setting == INLINE else None)
    assert only.setting == INLINE


def test_recorded_rates_give_the_same_choice() -> None:
    full = chosen(scaling(10, until=6))
    again = search(full.tried.get, LIMITS)
    assert again is not None
    assert (again.setting, again.reasons) == (full.setting, full.reasons)


def test_a_search_that_runs_out_of_time_recommends_nothing() -> None:
    """At whichever setting the time is up: the choice may depend on any that was not measured."""
    full = chosen(scaling(10, until=6, threads=1.2))
    for count in range(len(full.tried)):
        rates = dict(list(full.tried.items())[:count])

        def measure(setting: Setting, rates: dict[Setting, Rate] = rates) -> Rate | None:
            if setting not in rates:
                raise OutOfTime(setting)
            return rates[setting]

        choice = search(measure, LIMITS)
        assert choice is not None
        assert (choice.setting, choice.missing) == (None, list(full.tried)[count])
        assert choice.tried == rates
        assert choice.reasons[0].startswith(f"No recommendation: the time was up before {choice.missing} ")
        assert not any("samples/s" in reason for reason in choice.reasons)


def test_slower_settings_do_not_gain_little() -> None:
    """8 samples/s with 2 workers, where 1 worker made 10."""
    choice = chosen(lambda s: {0: 9.0, 1: 10.0}.get(s.workers, 8.0) if s.engine != "thread" else None)
    assert choice.setting == Setting("process", 1)
    assert "More are slower: 256 samples/s with 2 workers (process) (-20%)." in choice.reasons


def limits_for(
    cores: int, cpu_share: float, memory: int = 1 << 40, batch_bytes: int = 1 << 20, *, batch_s: float = 0.1
) -> Limits:
    return Limits.of(Load(batch_s, 0.0, cpu_share * batch_s, cores), memory, batch_bytes)


def test_limits_follow_from_cores_and_memory() -> None:
    assert limits_for(2, 1.0).workers == 2
    assert limits_for(2, 0.25).workers == 8
    assert limits_for(2, 0.0).workers == 16, "there is an upper bound"
    assert limits_for(2, 1.0, batch_s=3e-4).workers == 1, "a batch takes less time than its hand-over"
    tight = limits_for(8, 1.0, 800 << 20, 25 << 20)
    assert (tight.workers, tight.batches) == (4, 8)
    assert "25.0 MiB" in tight.reason
    assert limits_for(8, 1.0, 1 << 20, 1 << 30).workers == 1


@given(
    gains=st.lists(st.floats(0.0, 1.0), min_size=16, max_size=16),
    needed=st.floats(0.5, 200.0),
    limit=st.integers(1, 16),
)
def test_never_more_workers_than_needed(gains: list[float], needed: float, limit: int) -> None:
    """For any gain per worker: with one worker less, the training loop would wait."""
    rates = [10.0 * sum(gains[: count + 1]) + 0.1 for count in range(16)]

    def speed(setting: Setting) -> float | None:
        return rates[setting.workers - 1] if setting.engine == "process" else 0.1 if setting == INLINE else None

    choice = chosen(speed, step_s=1 / needed, limits=Limits(limit, 1000, ""))
    assert choice.setting.workers <= limit
    enough = [count for count in range(1, 17) if 1 - rates[count - 1] / needed < STALL]
    if choice.tried[choice.setting].keeps_up:
        assert choice.setting.workers == min(enough)
    else:
        fastest = max(rate.samples_per_s for rate in choice.tried.values())
        assert choice.tried[choice.setting].samples_per_s * LEAST_GAIN >= fastest
