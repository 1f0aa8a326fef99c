"""The drill itself: it passes, and it detects what is lost, repeated or left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.drill import script as scripts
from tests.drill.loaders import build_loader
from tests.drill.round import play
from tests.drill.script import Act, Crew, Script, draw_script

ROOT = Path(__file__).parents[2]

PLAIN = Script(
    seed=0,
    number=0,
    loader="Loader",
    crew=Crew("inline", 0),
    dataset="items",
    content="rows",
    size=20,
    batch_size=4,
    drop_last=False,
    shuffle=True,
    loader_seed=3,
    in_order=True,
    timeout_s=0.0,
    keeps=False,
    compares=False,
    on_error="raise",
    troubles={},
    acts=(Act(scripts.WHOLE),),
    attacks=(),
)


@pytest.mark.slow
def test_a_few_rounds_pass() -> None:
    command = [sys.executable, "-m", "tests.drill", "--seed", "11", "--rounds", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n2 rounds\n" in done.stdout


def test_rounds_are_reproducible_and_differ_from_each_other() -> None:
    assert draw_script(7, 3) == draw_script(7, 3)
    assert len({json.dumps(draw_script(7, number).settings()) for number in range(50)}) == 50
    assert draw_script(8, 3) != draw_script(7, 3)


def test_every_kind_of_fault_and_ending_is_drawn() -> None:
    drawn = [draw_script(7, number) for number in range(400)]
    assert {act.ending for script in drawn for act in script.acts} == set(scripts.ENDINGS)
    assert {attack.kind for script in drawn for attack in script.attacks} == {scripts.KILL, scripts.STOP}
    assert {script.dataset for script in drawn} == {*scripts.ITEMS, *scripts.STREAMS}
    assert {script.crew.engine for script in drawn} == {"inline", "thread", "process", "portable"}
    assert len({name for script in drawn for name in script.troubles.values()}) == 8


class Tampered:
    """A loader whose batches a function changes."""

    def __init__(self, loader: Any, tamper: Any) -> None:
        self._loader = loader
        self._tamper = tamper

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tamper(list(self._loader)))


@pytest.mark.parametrize(
    ("tamper", "finding"),
    [
        (lambda batches: batches[1:], "lost"),
        (lambda batches: [*batches, batches[2]], "repeated"),
        (lambda batches: [batch + 1 for batch in batches[:1]] + batches[1:], "corrupted"),
        (lambda batches: batches[::-1], "another than without workers"),
    ],
)
def test_wrong_batches_are_detected(monkeypatch: pytest.MonkeyPatch, tamper: Any, finding: str) -> None:
    def tampered(script: Script, crew: Crew, dataset: Any) -> Any:
        loader = build_loader(script, crew, dataset)
        return loader if dataset.troubles.tame else Tampered(loader, tamper)

    monkeypatch.setattr("tests.drill.stage.build_loader", tampered)
    outcome = play(replace(PLAIN, compares=True))
    assert any(finding in problem for problem in outcome.problems)


def test_leftovers_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []

    def leaving(script: Script, crew: Crew, dataset: Any) -> Any:
        left.append(os.open("/dev/null", os.O_RDONLY))
        return build_loader(script, crew, dataset)

    monkeypatch.setattr("tests.drill.stage.build_loader", leaving)
    outcome = play(PLAIN, grace_s=0.0)
    os.close(left[0])
    assert ["/dev/null" in problem for problem in outcome.problems] == [True]


def test_an_undisturbed_round_is_good() -> None:
    outcome = play(replace(PLAIN, compares=True))
    assert not outcome.problems
    assert outcome.counts == {"batches": 5, "samples": 20, "workers recycled": 0}
