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
from tests.tools.advise.fixes import Case, close_handles
from tests.tools.advise.measurements import measured
from tests.tools.advise.reliability import PROBED, SECONDS
from tests.tools.advise.test_machine import SOUND
from tests.tries import try_again

NOT_FIXED = {"failing-loader", "too-few-workers"}
"""Findings without code, as the change has to be made in the user's own, or that depend on the machine."""


def test_every_finding_about_a_dataset_has_a_rule_and_a_dataset() -> None:
    """The findings are read from the source code, so that no new one is forgotten."""
    named = set()
    for module in (wrong_data, slow_samples, slow_batches, workers):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding":
                named.add(ast.literal_eval(node.args[0]))
    assert named == {expected.rstrip("!") for _, expected in test_rules.RULES} - {""}
    assert named - NOT_FIXED <= {case.own for case in PROBED if case.is_fixed}


@pytest.mark.real_time
@pytest.mark.timeout(600)  # repeats
@pytest.mark.parametrize("case", PROBED, ids=lambda case: case.name)
def test_a_dataset_gets_its_own_finding_and_the_fix_gives_the_same_batches(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End to end, with a real probe. `python -m tests.tools.advise.reliability` does 100 runs beside busy loops."""
    if case.needs is not None:
        pytest.importorskip(case.needs)  # imported here: it may take longer than the probe

    def check() -> None:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        monkeypatch.chdir(folder)  # where some datasets write files
        found = {finding.name: finding for finding in diagnose(probe(case.source, seconds=SECONDS))}
        assert set(found) - set(case.also) == ({case.own} if case.own else set()), str(found)
        if case.own is None or not case.is_fixed or (code := found[case.own].code) is None:
            return
        dataset = case.make()
        case.check(code, dataset)
        close_handles(dataset)
        if case.gain is not None:
            gain, real = found[case.own].gain, case.measured_gain(code)
            # No gain is promised if the machine's noise hides it.
            assert gain is not None or real < 2
            # Of large gains, a part may be left out: what follows samples takes time, which counts as remaining.
            assert gain is None or min(real, 3) / 1.5 < gain < real * 1.5, f"{gain}, but {real}"

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


def test_the_dataset_of_a_loader_is_probed_on_request() -> None:
    loader = feedline.Loader(slow_datasets.OwnRandom(), 4, workers=1)
    found = feedline.doctor(loader, seconds=2.0)
    loader.close()
    assert [finding.name for finding in found] == ["copied-random"]
