"""Which settings are tried, which one is chosen, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.insight.worker_model import LEAST_GAIN, Load
from feedline.tools.measure.choice import STALL, Choice, Limits, Rate, Setting, choose, settings

INLINE = Setting("inline", 0)
COUNTS = (0, 1, 2, 4, 8, 16)


def scaling(each: float, *, until: float = 1e9, threads: float = 1.0) -> dict[Setting, float]:
    """Samples per second if each worker adds `each`, up to a number of workers; threads make a multiple of that."""
    return {
        setting: each * min(max(setting.workers, 1), until) * (threads if setting.engine == "thread" else 1.0)
        for setting in settings(COUNTS, ("process", "thread"))
    }


def chosen(made: dict[Setting, float], step_s: float = 0.0) -> Choice:
    """Choose for datasets that make so many samples per second, in batches of one."""
    rates = {}
    for setting, rate in made.items():
        if setting.workers == 0:  # makes a batch, trains, makes the next
            took_s = 1 / rate + step_s
            rates[setting] = Rate(1 / took_s, 1 / rate / took_s)
        else:
            taken = min(rate, 1 / step_s) if step_s else rate
            rates[setting] = Rate(taken, max(0.0, 1 - taken * step_s))
    choice = choose(rates, "that is all there is", step_s=step_s)
    assert choice.setting in rates
    assert 1 <= len(choice.reasons) <= 3
    return choice


@pytest.mark.parametrize(
    ("made", "step_s", "setting", "reason"),
    [
        (scaling(10, until=4), 0.0, Setting("process", 4), "More gain little"),
        (scaling(10), 0.0, Setting("process", 16), "More were not tried: that is all there is"),
        ({**scaling(9, until=1), INLINE: 100.0}, 0.0, INLINE, "More are slower: 9 samples/s with 1 worker (process)"),
        (scaling(10, threads=1.5), 0.0, Setting("thread", 16), "within 5 %"),
        ({**scaling(10, until=4), Setting("process", 4, 8): 50.0}, 0.0, Setting("process", 4, 8), "prefetch 8"),
        (scaling(10), 1 / 35, Setting("process", 4), "training waits for 0.0% of its time, at steps of 28.6 ms"),
        (scaling(10_000), 0.1, INLINE, "With no workers training waits for 0.1%"),
        (scaling(10, until=4), 0.01, Setting("process", 4), "Nothing keeps up with steps of 10 ms"),
    ],
)
def test_the_fewest_workers_that_are_enough_are_chosen(
    made: dict[Setting, float], step_s: float, setting: Setting, reason: str
) -> None:
    choice = chosen(made, step_s)
    assert choice.setting == setting
    assert reason in " ".join(choice.reasons)


@given(gains=st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6), needed=st.floats(0.5, 200.0))
def test_never_more_workers_than_needed(gains: list[float], needed: float) -> None:
    """For any gain per worker: with fewer workers, the training loop would wait."""
    made = {Setting("process", count or 1): 10.0 * sum(gains[: place + 1]) + 0.1 for place, count in enumerate(COUNTS)}
    choice = chosen({**made, INLINE: 0.1}, 1 / needed)
    enough = [setting.workers for setting, rate in made.items() if 1 - rate / needed < STALL]
    assert choice.setting is not None
    if enough:
        assert choice.setting.workers == min(enough)
    else:
        assert made.get(choice.setting, 0.1) * LEAST_GAIN >= min(needed, max(made.values()))


def test_a_busy_machine_gets_no_recommendation() -> None:
    rates = {INLINE: Rate(10.0), Setting("process", 1): Rate(100.0, is_disturbed=True)}
    choice = choose(rates, "")
    assert choice.setting is None
    assert "other programs" in choice.reasons[0]
    assert choose({**rates, INLINE: Rate(200.0)}, "").setting == INLINE


def limits_for(
    cores: int,
    cpu_share: float,
    memory: int = 1 << 40,
    batch_bytes: int = 1 << 20,
    *,
    batch_s: float = 0.1,
    step_s: float = 0.0,
) -> Limits:
    return Limits.of(Load(batch_s, step_s, cpu_share * batch_s, cores), memory, batch_bytes)


def test_limits_follow_from_cores_memory_and_step() -> None:
    assert limits_for(2, 1.0).workers == 2
    assert limits_for(2, 0.25).workers == 8
    assert limits_for(2, 1.0, batch_s=3e-4).workers == 1, "a batch takes less time than its hand-over"
    assert limits_for(64, 0.0, step_s=0.04).workers == 6, "three make a batch per step, if all goes well"
    tight = limits_for(8, 1.0, 800 << 20, 25 << 20)
    assert (tight.workers, tight.batches) == (4, 8)
