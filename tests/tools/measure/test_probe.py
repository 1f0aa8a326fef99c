"""A dataset is probed in its own process: it can do no harm there, and nothing is left running.

The tests check what the probe counts and when it gives up: by a fake clock, not by wall-clock time.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption, DatasetFailed
from feedline.tools.measure.isolated import TimeBudget
from feedline.tools.measure.measured import STAGES
from feedline.tools.measure.probe import probe
from tests.tools.lab.served import has_ended

HERE = Path(__file__).parent
AMPLE_S = 60.0
"""For datasets that end by themselves, long before."""
SHORT_S = 0.5
"""For datasets that hang: the test waits that long."""


def failure(name: str, *, seconds: float = AMPLE_S, memory_bytes: int | None = None) -> DatasetFailed:
    with pytest.raises(DatasetFailed) as caught:
        probe(f"{HERE / 'broken.py'}:{name}", seconds=seconds, memory_bytes=memory_bytes)
    return caught.value


def test_all_parts_are_measured_in_their_stages() -> None:
    stages: list[str] = []
    measured = probe(f"{HERE / 'broken.py'}:Plain", seconds=5, on_stage=stages.append)
    assert stages == [stage for stage in STAGES if stage != "loader"]
    assert measured.ended is None
    assert len(measured.samples.seconds) == 100
    assert measured.samples.sample_bytes == 64
    assert measured.batch is not None


@pytest.mark.parametrize(
    ("name", "reason", "text", "traceback"),
    [
        ("Raising", "raises", r"None of the 16 samples .* could be made. The first was sample \d+", "in look_up"),
        ("Empty", "empty", r"is empty: len\(Empty\) is 0", ""),
        ("EmptyStream", "empty", "is empty: it has no samples", ""),
        ("Hanging", "hangs", r"did not finish within \d+ s", "in wait_for_ever"),
        ("HangingToBeMade", "hangs", "while it was imported and created", "in __init__"),
        ("Crashing", "crashes", r"was killed by signal 11 \(Segmentation fault\)", "in __getitem__"),
        ("ForkingAndExiting", "crashes", "ended its process with status 9", ""),
    ],
)
def test_datasets_that_cannot_be_probed_are_explained(name: str, reason: str, text: str, traceback: str) -> None:
    exc = failure(name, seconds=SHORT_S if reason == "hangs" else AMPLE_S)
    assert exc.reason == reason
    assert re.search(text, str(exc), re.DOTALL)
    assert traceback in exc.traceback
    assert "broken.py" in exc.traceback or not traceback


def test_a_dataset_that_takes_too_much_memory_is_stopped() -> None:
    exc = failure("Eating", memory_bytes=256 << 20)
    assert exc.reason == "crashes"
    assert re.search(r"took .* of memory, and the limit is 256.0 MiB", str(exc))


def test_processes_started_by_a_dataset_are_stopped(capfd: pytest.CaptureFixture[str]) -> None:
    assert failure("Starting", seconds=SHORT_S).reason == "hangs"
    (pid,) = re.findall(r"pid (\d+)", capfd.readouterr().err)
    assert has_ended(int(pid))


def test_a_probe_ends_even_if_forked_processes_hold_its_connection() -> None:
    assert probe(f"{HERE / 'broken.py'}:Forking", seconds=5).ended is None


def test_rejects_objects_that_are_not_datasets() -> None:
    with pytest.raises(BadOption, match="is 3, of type int, which is not a dataset") as caught:
        probe(f"{HERE / 'broken.py'}:number", seconds=1)
    assert not isinstance(caught.value, DatasetFailed)


# -- time budget -------------------------------------------------------------------------------------------------------

POLL_S = 0.05


def polls_until_over(budget: TimeBudget, steps: list[tuple[float, float, float]]) -> int | None:
    """Poll with given steps (elapsed, queued and computed seconds); return the poll at which the budget is used up."""
    now_s = queued_s = moved_s = 0.0
    assert not budget.is_over(now_s, queued_s, lambda: moved_s)
    for place, (step_s, in_queue_s, computed_s) in enumerate(steps):
        now_s, queued_s, moved_s = now_s + step_s, queued_s + in_queue_s, moved_s + in_queue_s + computed_s
        if budget.is_over(now_s, queued_s, lambda moved=moved_s: moved):  # type: ignore[misc]
            return place
    return None


@pytest.mark.parametrize(
    ("step", "over_s"),
    [
        ((POLL_S, 0.0, 0.0), 3.0),  # a dataset that sleeps is stopped a second after its time
        ((POLL_S, 0.0, POLL_S), 12.0),  # one that computes gets ten more
        ((POLL_S, POLL_S, 0.0), None),  # one that waits for a core does not hang
    ],
)
def test_what_counts_as_hanging(step: tuple[float, float, float], over_s: float | None) -> None:
    budget = TimeBudget(2.0)
    budget.begin()
    over = polls_until_over(budget, [step] * 1000)
    assert over == (None if over_s is None else pytest.approx(over_s / POLL_S, abs=2))


@given(stops=st.lists(st.floats(0.5, 100.0), max_size=15))
def test_the_time_of_a_stopped_machine_does_not_count(stops: list[float]) -> None:
    """Each stop counts as two polls, so that a hanging dataset is stopped eventually."""
    steps = [(POLL_S, 0.0, 0.0)] * 20 + [(stop, 0.0, 0.0) for stop in stops]
    budget = TimeBudget(2.0)
    budget.begin()
    assert polls_until_over(budget, steps) is None
