"""The soak itself: it passes, and it detects growth and batches that are lost, repeated or different."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any  # values of JSON

import pytest

from tests.drill.script import KILL, STOP
from tests.drill.troubles import FLAKY, KILLS_ONCE, SLOW
from tests.soak import report
from tests.soak.cycle import KINDS, WARM_UP, draw_cycle
from tests.soak.data import Record, bad_samples, configuration
from tests.soak.sequence import Checker, Expected
from tests.soak.settings import CONFIGURATIONS, Settings
from tests.soak.trial import ROOT, Life, Result
from tests.soak.verdict import findings, growth_bytes

MIB = 1 << 20


def steady(count: int, **changes: Callable[[int], object]) -> list[dict[str, Any]]:
    """Return cycles of a steady program, except for some figures."""
    plain = {"private_bytes": 240 * MIB, "batch_bytes": 0, "descriptors": 4, "threads": 1, "processes": 0}
    return [
        {**plain, "leftovers": [], **{name: change(place) for name, change in changes.items()}}
        for place in range(count)
    ]


def result_of(cycles: list[dict[str, Any]]) -> Result:
    return Result("items-threads", [Life(0, 0, cycles, "finished")], steps=10)


def found_in(cycles: list[dict[str, Any]]) -> list[str]:
    return [one.what for one in findings(result_of(cycles), 16 * MIB)]


def test_a_steady_program_passes() -> None:
    jumps = steady(60, private_bytes=lambda place: (240 + 30 * (place == 40) + place % 3) * MIB)
    assert found_in(steady(60)) == found_in(jumps) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"private_bytes": lambda place: 240 * MIB + place * MIB // 2}, "memory grew by 28 MiB in 57 cycles"),
        ({"descriptors": lambda place: 4 + place // 20}, "descriptors rose from 4 to 6"),
        ({"threads": lambda place: 1 + place}, "threads rose"),
        ({"processes": lambda place: int(place > 30)}, "processes rose from 0 to 1"),
        ({"batch_bytes": lambda place: 1000 * place}, "batch_bytes rose"),
        ({"leftovers": lambda place: ["thread 'x'"] if place == 9 else []}, "left behind after a cycle: thread 'x'"),
    ],
)
def test_growth_is_found(changes: dict[str, Callable[[int], object]], text: str) -> None:
    (found,) = found_in(steady(60, **changes))
    assert text in found


def records(count: int) -> list[Record]:
    return [Record((2 * step, 2 * step + 1), f"{step}") for step in range(count)]


def checked(*events: tuple[str, int] | tuple[str, int, Record]) -> Checker:
    checker = Checker(Expected(iter(records(100))))
    for name, *values in events:
        getattr(checker, name)(*values)
    return checker


def test_a_life_that_continues_from_its_checkpoint_has_no_problems() -> None:
    made = records(10)
    first = [("take", step, made[step]) for step in range(5)]
    again = [("take", step, made[step]) for step in range(3, 10)]
    checker = checked(("begin", 0), *first[:3], ("save", 3), *first[3:], ("begin", 3), *again)
    assert checker.problems == []
    assert (checker.delivered, checker.repeated, checker.samples) == (10, 2, 20)


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([("begin", 1)], "resumed at step 1"),
        ([("begin", 0), ("take", 0, records(1)[0]), ("save", 1), ("begin", 0)], "although 1 were saved"),
        ([("begin", 0), ("take", 1, records(2)[1])], "step 1 came where step 0 was due"),
        ([("begin", 0), ("take", 0, records(2)[1])], "instead of (0, 1)"),
        ([("begin", 0), ("take", 0, Record((0, 1), "other"))], "other bytes"),
    ],
)
def test_batches_that_are_lost_repeated_or_different_are_found(events: list[Any], text: str) -> None:
    (problem,) = checked(*events).problems
    assert text in problem


def test_every_kind_of_fault_is_drawn_and_cycles_are_reproducible() -> None:
    settings = Settings(seed=3, folder="")
    kind = configuration("items-processes")
    drawn = [draw_cycle(settings, kind, number) for number in range(60)]
    assert drawn == [draw_cycle(settings, kind, number) for number in range(60)]
    assert [cycle.kind for cycle in drawn[:WARM_UP]] == list(KINDS)
    assert {name for cycle in drawn for name in cycle.troubles.values()} == {SLOW, FLAKY, KILLS_ONCE}
    assert {attack.kind for cycle in drawn for attack in cycle.attacks} == {KILL, STOP}
    bad = bad_samples(settings, kind.name)
    assert not any(bad & set(cycle.troubles) for cycle in drawn), "the samples that raise are always the same"


# Any: values of JSON.


def test_the_report_names_failures(tmp_path: Path) -> None:
    settings = Settings(seed=1, folder=str(tmp_path), configurations=("items-threads",))
    result = result_of(steady(30, threads=lambda place: 1 + place))
    report.write(settings, [result])
    saved = json.loads((tmp_path / "soak.json").read_text())
    assert not saved["ok"]
    assert "FAILED items-threads: life 0: threads rose" in (tmp_path / "soak.txt").read_text()
    assert growth_bytes(result.lives[0].cycles) == 0


def run(folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "tests.soak", "--out", str(folder), "--hours", "0.001", "--seed", "2"]
    done = subprocess.run(
        [*command, "--size", "160", "--step", "0.001", *options], cwd=ROOT, capture_output=True, text=True
    )
    file = folder / "soak.json"
    return done.returncode, json.loads(file.read_text()) if file.exists() else {}, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_configurations_are_killed_resumed_and_pass(tmp_path: Path) -> None:
    code, saved, messages = run(tmp_path / "soak", "--resumes", "2")
    assert code == 0, messages
    assert saved["ok"]
    assert [one["name"] for one in saved["configurations"]] == list(CONFIGURATIONS)
    for one in saved["configurations"]:
        assert one["kills"] == 2
        assert [life["end"] for life in one["lives"]] == ["was killed by signal 9"] * 2 + ["finished"]
        firsts = [life["first_step"] for life in one["lives"]]
        assert firsts == sorted(firsts)
        assert one["samples"] > 160
    assert "PASSED" in messages


def test_the_result_of_another_soak_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.soak.__main__ import main

    (tmp_path / CONFIGURATIONS[0]).mkdir()
    assert main(["--out", str(tmp_path)]) == 2
    assert "another soak" in capsys.readouterr().err
