"""The doctor names the cure of real datasets with known diseases.

What a probe sees of them does not depend on the machine's speed; what it recommends is tested with recorded times, and
with its own times in slow tests.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feedline.tools.advise.diagnosis import diagnose
from feedline.tools.advise.finding import Finding
from feedline.tools.measure.measured import Lock, Measured, State
from feedline.tools.measure.probe import probe
from feedline.tools.measure.state import handles_before, held_share, locks_of
from tests.tools.advise import diseases
from tests.tools.advise.measurements import loader, measured, samples
from tests.tries import try_again

PROBE_S = 8.0


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def probed(name: str) -> Measured:
    return probe(f"{diseases.__name__}:{name}", seconds=PROBE_S)


def found(setup: Measured) -> dict[str, Finding]:
    return {finding.name: finding for finding in diagnose(setup)}


# -- what a probe sees -------------------------------------------------------------------------------------------------


def test_an_open_hdf5_file_is_opened_later_from_its_own_path() -> None:
    dataset = diseases.ChunkedInherited()
    (finding,) = diagnose(measured(state=State(handles=handles_before(dataset))))
    assert finding.code is not None
    assert f"self.file = h5py.File({os.path.abspath('rows.h5')!r}, 'r')" in finding.code
    assert "self.path" not in finding.code
    dataset.close()


@pytest.mark.parametrize(
    ("kind", "path", "is_held"),
    [
        (diseases.OwnLock, "dataset.lock", True),
        (diseases.ModuleLock, f"{diseases.__name__}.LOCK", True),
        (diseases.FreeLock, "dataset.lock", False),
    ],
)
def test_locks_that_samples_hold_are_found(kind: type[diseases.Rows], path: str, is_held: bool) -> None:
    dataset = kind()
    lock = dict(locks_of(dataset))[path]
    assert not [path for path, _ in locks_of(range(3)) if "range" in path]

    def check() -> None:
        assert (held_share(lock, lambda: dataset[0], 0.2) > 0.5) == is_held

    try_again(check)


# -- what follows from it ----------------------------------------------------------------------------------------------


def test_a_lock_is_named_where_threads_would_wait_for_it() -> None:
    held, free = Lock("dataset.lock", 0.9), Lock("dataset.other", 0.3)
    for engine, severity in (("thread", "serious"), (None, "advice"), ("process", None), ("inline", None)):
        given = None if engine is None else loader(engine=engine)
        setup = measured(samples=samples(locks=(free, held), cpu_share=0.1), loader=given)
        finding = found(setup).get("serialised")
        assert (finding and finding.severity) == severity
        if finding is not None:
            assert "dataset.lock for 90%" in finding.problem
            assert "at most 1.1 times the samples of one" in finding.evidence
            assert finding.gain is None
    assert "serialised" not in found(measured(samples=samples(locks=(free,)), loader=loader(engine="thread")))


# -- both, with real times ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "finding", "cure"),
    [
        ("OwnLock", "serialised", 'engine="process"'),
        ("ModuleLock", "serialised", 'engine="process"'),
        ("lock_on_threads", "serialised", 'engine="process"'),
    ],
)
def test_the_cure_is_named(name: str, finding: str, cure: str) -> None:
    def check() -> None:
        findings = found(probed(name))
        assert cure in str(findings[finding].code)
        assert not {"gil-bound", "waiting", "reopened-file"} & set(findings), "one disease, one finding"
        if finding == "serialised":
            assert findings[finding].gain is None

    try_again(check)


@pytest.mark.slow
def test_no_cure_is_named_for_a_lock_that_is_hardly_held() -> None:
    assert "serialised" not in found(probed("FreeLock"))
