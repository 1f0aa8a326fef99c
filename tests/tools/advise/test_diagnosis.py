"""From measurements to findings: recorded and generated measurements and, in slow tests, those of a real probe."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import feedline
from feedline.tools.advise import machine, slow_batches, slow_samples, workers, wrong_data
from feedline.tools.advise.diagnosis import diagnose
from feedline.tools.advise.finding import Finding
from feedline.tools.measure.machine import collect_details
from feedline.tools.measure.measured import Noise
from feedline.tools.measure.probe import probe
from tests.tools.advise import slow_datasets, test_rules, test_running  # with torch, before a process is forked
from tests.tools.advise.fixes import CASES, Case, close_handles
from tests.tools.advise.measurements import measured
from tests.tools.advise.reliability import PROBED, SECONDS, run_once
from tests.tools.advise.test_machine import SOUND
from tests.tries import try_again

FIXES = {name: case for name, case in CASES.items() if case.setup is not None}
NO_CODE = {"failing-loader"}
"""Findings without code, as the change has to be made in the user's own."""


# -- fixes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [*list(FIXES)[:3], *(pytest.param(name, marks=pytest.mark.slow) for name in list(FIXES)[3:])]
)
def test_the_fix_gives_the_same_batches(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where some datasets write files
    fix = FIXES[name]
    dataset = fix.make()
    (finding,) = [one for one in diagnose(fix.measured(dataset)) if one.name == fix.own]
    assert finding.code is not None
    try:
        fix.check(finding.code, dataset)
    finally:
        close_handles(dataset)


def test_every_finding_about_a_dataset_has_a_tested_fix() -> None:
    """The findings are read from the source code, so that no new one is forgotten."""
    named = set()
    for module in (wrong_data, slow_samples, slow_batches, workers):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding":
                named.add(ast.literal_eval(node.args[0]))
    assert named - NO_CODE == {fix.own for fix in FIXES.values()}


@pytest.mark.real_time
@pytest.mark.timeout(600)  # repeats
@pytest.mark.parametrize("name", [name for name, fix in FIXES.items() if fix.gain is not None])
def test_the_promised_gain_is_what_the_fix_gains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix = FIXES[name]

    def check() -> None:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        monkeypatch.chdir(folder)
        (finding,) = [one for one in diagnose(probe(fix.source, seconds=SECONDS)) if one.name == fix.own]
        assert finding.code is not None
        fix.check(finding.code, fix.make())
        real = fix.measured_gain(finding.code)
        # No gain is promised if the machine's noise hides it.
        assert finding.gain is not None or real < 2
        # Of large gains, a part may be left out: what follows samples takes time, which counts as remaining.
        assert finding.gain is None or min(real, 3) / 1.5 < finding.gain < real * 1.5, f"{finding.gain}, but {real}"

    try_again(check)


# -- sentences ---------------------------------------------------------------------------------------------------------


def every_finding() -> list[Finding]:
    """Return findings of every kind: about datasets, runs and machines."""
    found = [finding for changes, _ in test_rules.RULES for finding in diagnose(measured(**changes))]
    found += diagnose(measured(**test_rules.SLEEPY, noise=Noise(20.0)))
    for parameters in test_running.PROBLEMS:
        found += test_running.found(**parameters[0])
    return [*found, *machine.find(collect_details()), *machine.find(SOUND)]


def test_the_first_sentence_of_every_finding_is_short() -> None:
    found = every_finding()
    assert len({finding.name for finding in found}) > 35
    for finding in found:
        assert len(finding.problem.split()) < 15, finding.problem
        assert len(finding.problem) < 75, f"too long for a line of the table: {finding.problem}"
        assert "\n" not in finding.problem
        assert "wait for storage" not in str(finding), "whether they sleep or compute was measured"


# -- real probes -----


@pytest.mark.real_time
@pytest.mark.timeout(600)  # repeats
@pytest.mark.parametrize("case", PROBED, ids=lambda case: case.name)
def test_a_dataset_gets_its_own_finding(case: Case) -> None:
    """End to end, with a real probe. `python -m tests.tools.advise.reliability` does 100 runs beside busy loops."""
    if case.needs is not None:
        pytest.importorskip(case.needs)  # imported here: it may take longer than the probe

    def check() -> None:
        found, odd = run_once(case)
        assert found - set(case.also) == ({case.own} if case.own else set()), odd

    try_again(check)


def test_the_dataset_of_a_loader_is_probed_on_request() -> None:
    loader = feedline.Loader(slow_datasets.OwnRandom(), 4, workers=1)
    found = feedline.doctor(loader, seconds=2.0)
    loader.close()
    assert [finding.name for finding in found] == ["copied-random"]
