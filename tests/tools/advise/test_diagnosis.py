"""From measurements to findings: recorded and generated measurements and, in slow tests, those of a real probe."""

from __future__ import annotations

import ast
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline
from feedline.tools.advise import machine, slow_batches, slow_samples, slow_source, workers, wrong_data
from feedline.tools.advise.diagnosis import as_dict, diagnose, summary
from feedline.tools.advise.finding import NOT_SURE, Finding
from feedline.tools.measure.machine import collect_details
from feedline.tools.measure.measured import LEAST_SAMPLES, Measured, Noise, Samples, SlowRows, State, Threads
from feedline.tools.measure.probe import probe
from feedline.tools.measure.state import handles_before
from tests.tools.advise import (
    diseases,
    slow_datasets,  # with torch: a process that is forked has it imported
    test_rules,
    test_running,
)
from tests.tools.advise.fixes import CASES, Case, close_handles
from tests.tools.advise.measurements import batch, loader, measured, samples
from tests.tools.advise.reliability import PROBED, SECONDS, run_once
from tests.tools.advise.test_machine import SOUND
from tests.tries import try_again

FIXES = {name: case for name, case in CASES.items() if case.setup is not None}
NO_CODE = {"failing-loader"}
"""Findings without code, as the change has to be made in the user's own."""

pytestmark = pytest.mark.sample(3)


def names(findings: list[Finding]) -> list[str]:
    return [finding.name for finding in findings]


# -- fixes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIXES)
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


def test_an_open_hdf5_file_is_opened_later_from_its_own_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = diseases.ChunkedInherited()
    (finding,) = diagnose(measured(state=State(handles=handles_before(dataset))))
    assert f"self.file = h5py.File({str(tmp_path / 'rows.h5')!r}, 'r')" in str(finding.code)
    assert "self.path" not in str(finding.code)
    dataset.close()


def test_every_finding_about_a_dataset_has_a_tested_fix() -> None:
    """The findings are read from the source code, so that no new one is forgotten."""
    named = set()
    for module in (wrong_data, slow_samples, slow_source, slow_batches, workers):
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
    written = SimpleNamespace(path="/data/rows.txt", paths=["/data/0.jpg"])
    found = [finding for fix in FIXES.values() for finding in diagnose(fix.measured(written))]
    found += [finding for changes, _ in test_rules.RULES for finding in diagnose(measured(**changes))]
    found += diagnose(replace(FIXES["Waiting"].measured(None), noise=Noise(20.0)))
    for parameters in test_running.PROBLEMS:
        found += test_running.found(**parameters[0])
    return [*found, *machine.find(collect_details()), *machine.find(SOUND)]


def test_no_gain_is_promised_from_few_samples() -> None:
    rows = SlowRows("pandas", "/data/a.csv", 7.5e-4, "CSVDataset", "...", row_s=0.0)
    for count, gain in ((LEAST_SAMPLES - 1, None), (LEAST_SAMPLES, 4.0)):
        setup = measured(samples=samples(seconds=(1e-3,) * count, rows=rows))
        (finding,) = diagnose(setup)
        assert finding.gain == (gain and pytest.approx(gain, rel=0.05))
        assert ("fewer than 20 samples" in "\n".join(summary(setup))) == (gain is None)


def test_the_first_sentence_of_every_finding_is_short() -> None:
    found = every_finding()
    assert len({finding.name for finding in found}) > 35
    for finding in found:
        assert len(finding.problem.split()) < 15, finding.problem
        assert len(finding.problem) < 75, f"too long for a line of the table: {finding.problem}"
        assert "\n" not in finding.problem
        assert "wait for storage" not in str(finding), "whether they sleep or compute was measured"


# -- noise -------------------------------------------------------------------------------------------------------------

HEALTHY = measured()
TIMED = {
    "slow-collate": measured(batch=batch(collate_s=0.5, is_custom=True)),
    "waiting": measured(samples=samples(cpu_share=0.05), threads=Threads({1: 100.0, 8: 780.0})),
    "stragglers": measured(
        samples=samples(seconds=(1e-3,) * 180 + (0.2,) * 20, repeated=tuple((str(index), 0.2) for index in range(8)))
    ),
    "workers-restarted": measured(loader=loader(start_s=12.5)),
    "too-many-workers": measured(loader=loader(workers=32)),
}


def disturbed(setup: Measured, noise: float, factors: list[float]) -> Measured:
    """Return measurements with an error of at most this share in every time."""
    given = iter(factors * 1000)

    def off(seconds: float) -> float:
        return float(seconds * (1 + noise) ** next(given))

    def changed(part: Any) -> Any:
        if part is None:
            return None
        times: dict[str, Any] = {
            name: off(value)
            for name, value in vars(part).items()
            if name.endswith("_s") and isinstance(value, float) and math.isfinite(value)
        }
        if isinstance(part, Samples):
            times["seconds"] = tuple(map(off, part.seconds))
        return replace(part, **times)

    parts = {name: changed(getattr(setup, name)) for name in ("samples", "batch", "loader")}
    return replace(setup, **parts, noise=Noise(spread=noise))


some_noise = st.floats(0.0, 0.6)
some_factors = st.lists(st.floats(-0.5, 0.5), min_size=7, max_size=31)


@given(noise=some_noise, factors=some_factors)
def test_noise_causes_no_findings(noise: float, factors: list[float]) -> None:
    assert names(diagnose(disturbed(HEALTHY, noise, factors))) == []


@pytest.mark.parametrize("name", TIMED)
@given(noise=some_noise, factors=some_factors)
def test_noise_hides_no_finding_that_clearly_exceeds_it(name: str, noise: float, factors: list[float]) -> None:
    assert names(diagnose(disturbed(TIMED[name], noise, factors))) == [name]


def test_findings_near_a_threshold_need_a_quiet_machine() -> None:
    near = measured(batch=batch(collate_s=0.015, is_custom=True))
    assert names(diagnose(near)) == ["slow-collate"]
    assert names(diagnose(replace(near, noise=Noise(spread=0.3)))) == [NOT_SURE]
    assert names(diagnose(replace(near, noise=Noise(stolen=0.3)))) == [NOT_SURE]
    assert "busy" in "\n".join(summary(replace(near, noise=Noise(stolen=0.3))))


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


# -- figures ----------------------------------------------------------------------------------------------------------


def test_the_summary_contains_the_measurements() -> None:
    setup = TIMED["waiting"]
    text = "\n".join(summary(setup))
    for part in ("Mine: 100,000 samples", "p99", "computing", "A batch of 32", "8 threads made 7.80 times"):
        assert part in text
    assert "default collate function cannot combine the samples. If your loader" in str(summary(measured(batch=None)))
    figures = json.loads(json.dumps(as_dict(setup)))
    assert (figures["dataset"], figures["p50_s"]) == ("Mine", 1e-3)
    assert set(figures["samples_per_s_by_threads"]) == {"1", "8"}
    assert set(figures["noise"]) == {"spread", "stolen", "queued"}


# -- runs --------------------------------------------------------------------------------------------------------------


def test_the_dataset_of_a_loader_is_probed_on_request() -> None:
    loader = feedline.Loader(slow_datasets.OwnRandom(), 4, workers=1)
    found = feedline.doctor(loader, seconds=2.0)
    loader.close()
    assert names(found) == ["copied-random"]
