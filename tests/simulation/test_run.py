"""Training loops in simulated worlds: what they get, and that every run is the same."""

from __future__ import annotations

import contextlib
import random
import time

import pytest

import feedline.simulation
from feedline.errors import BadOption
from feedline.faults import Policy
from feedline.simulation.scenario import IN_ORDER, InTurn, Seconds
from tests.simulation.__main__ import report_broken
from tests.simulation.drawing import Habits, TrainingScenario, draw_scenario
from tests.simulation.run import WorldBroken, simulate
from tests.simulation.scenario import MAP, OWN, Accidents, Troubles

FRESH_S = 5.0
"""How long fresh worlds are simulated, seed after seed."""


@pytest.mark.parametrize("seed", [3, 17, 29])
def test_two_runs_of_a_seed_are_the_same(seed: int) -> None:
    first, second = (simulate(draw_scenario(seed), events=800) for _ in range(2))
    assert first.trace == second.trace
    assert first == second


@pytest.mark.parametrize("seed", [2, 4, 18, 23])
def test_what_is_set_in_a_drawn_world_determines_what_is_drawn_for_it(seed: int) -> None:
    """Samples that kill workers, or batches of several sizes, are drawn only for map-style datasets."""
    assert draw_scenario(seed).kind == MAP
    world = draw_scenario(seed, kind=OWN, order=IN_ORDER, persistent=True, habits=Habits(leave=0.2))
    assert simulate(world, events=1000).events >= 1000


@pytest.mark.parametrize("seed", range(24))
def test_drawn_worlds_break_no_law(seed: int) -> None:
    assert simulate(draw_scenario(seed), events=500).events >= 500


@pytest.mark.slow
def test_fresh_worlds_break_no_law() -> None:
    seed, until_s = random.SystemRandom().randrange(1 << 30), time.monotonic() + FRESH_S
    while time.monotonic() < until_s:
        try:
            simulate(draw_scenario(seed), events=1000)
        except WorldBroken as broken:
            report_broken(broken, 1000)  # how to repeat it
            raise
        seed += 1


def test_a_start_error_during_a_state_request_is_raised_by_the_next_batch() -> None:
    assert simulate(draw_scenario(270519213), events=2000).raised["NotReady"]


# -- the worlds of the package, which what-if and the contract for schedulers use ------------------------------------


def times_of(scenario: feedline.simulation.Scenario) -> list[float]:
    """Return when each batch of an epoch came to a loop that does nothing else."""
    world = feedline.simulation.World(scenario)
    world.begin()
    times = []
    with contextlib.suppress(StopIteration):
        while True:
            world.next()
            times.append(world.now_s)
    world.close()
    return times


@pytest.mark.parametrize(("batch_s", "times"), [((0.25,), [0.25, 0.5, 0.75]), (InTurn((0.1, 0.2)), [0.1, 0.3, 0.4])])
def test_recorded_times_are_used_unchanged(batch_s: Seconds, times: list[float]) -> None:
    scenario = feedline.simulation.Scenario(samples=24, workers=1, depth=1, batch_s=batch_s, start_s=0.0)
    assert times_of(scenario) == pytest.approx(times, abs=1e-3)


@pytest.mark.parametrize(("computing", "share"), [(1.0, 2.0), (0.5, 4.0), (0.0, 8.0)])
def test_workers_that_compute_share_the_cores(computing: float, share: float) -> None:
    scenario = feedline.simulation.Scenario(workers=8, batch_s=(0.1,), start_s=0.0, cores=2, computing=computing)
    times = times_of(scenario)
    assert len(times) / times[-1] == pytest.approx(share / 0.1, rel=0.15)


# -- samples and workers that fail -------------------------------------------------------------------------------------


def test_samples_that_kill_workers_are_found() -> None:
    killers = Troubles(killers=frozenset({13}))
    scenario = TrainingScenario(samples=40, restarts=1000, troubles=killers, policy=Policy(otherwise="skip"))
    assert simulate(scenario, events=500).counts["restarts"] >= 3


def test_an_exhausted_fault_budget_ends_the_epoch() -> None:
    bad = Troubles(bad=frozenset({2, 3, 4}))
    run = simulate(
        TrainingScenario(samples=40, troubles=bad, policy=Policy(otherwise="skip", max_failures=2)), events=200
    )
    assert run.raised["TooManyBadSamples"] > 0


def test_rejects_a_world_that_would_wait_forever() -> None:
    with pytest.raises(BadOption, match="Set a timeout"):
        TrainingScenario(accidents=Accidents(hang=0.1))


@pytest.mark.slow
def test_states_saved_after_every_batch_resume_exactly() -> None:
    for kind in ("map", "shared stream", "own streams"):
        run = simulate(
            TrainingScenario(kind=kind, samples=24, habits=Habits(look=1.0), stateful=kind != "map"), events=1500
        )
        assert run.looks > 20
