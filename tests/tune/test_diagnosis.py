"""Each disease is named on a dataset that has it, and no other is."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.errors import BadOption, BadRecording
from feedline.observe.recording import Recording
from feedline.tune.diagnosis import as_dict, diagnose, diagnose_recording, summary
from feedline.tune.measured import Measured, Room
from feedline.tune.probe import probe
from tests.report.recordings import recording_of
from tests.tune import sick, sound  # with torch: a process that is forked has both imported
from tests.tune.cures import CURES

pytestmark = pytest.mark.sample(3)


def tried(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 2.0) -> Measured:
    monkeypatch.chdir(folder)  # where some of them write files
    # Of a loader, in lower case, workers are started: on a busy machine that may take seconds.
    measured = probe(f"{sick.__name__}:{name}", seconds=8.0 if name.islower() else seconds)
    assert measured.ended is None
    return measured


@pytest.mark.parametrize(
    "name",
    ["Healthy", "Streamed", "Awaited", "OpenedLater", "Computing", "healthy_loader", "plain_loader"],
)
def test_healthy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnose(tried(name, tmp_path, monkeypatch)) == []


@pytest.mark.parametrize(
    "name",
    [
        "tensors",
        pytest.param("subset", marks=pytest.mark.slow),
        pytest.param("concatenated", marks=pytest.mark.slow),
        pytest.param("Texts", marks=pytest.mark.slow),
        "Tokens",
        "Images",
        pytest.param("image_folder", marks=pytest.mark.slow),
        pytest.param("mapped", marks=pytest.mark.slow),
        "hdf5",
        "hugging_face",
    ],
)
def test_healthy_kinds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "hugging_face":
        pytest.importorskip("datasets")  # imported here: it takes longer than the dataset is tried
    monkeypatch.chdir(tmp_path)
    measured = probe(f"{sound.__name__}:{name}", seconds=4.0)
    assert measured.ended is None
    # About half of a sample is Python in these. Whether that is much depends on what else the machine is doing.
    borderline = ("gil-bound",) if name in ("Images", "image_folder", "hugging_face") else ()
    assert [finding for finding in diagnose(measured) if finding.name not in borderline] == []


@pytest.mark.parametrize(
    ("name", "disease", "is_serious"),
    [
        ("Locked", "gil-bound", False),
        ("Waiting", "waiting", False),
        ("Objects", "serialisation", False),
        ("SlowToMake", "slow-init", True),
        ("SlowToPickle", "slow-pickling", False),
        ("Unpicklable", "unpicklable", False),
        ("LargeList", "copied-objects", False),
        ("OwnRandom", "copied-random", True),
        ("global_python", "global-random", False),
        pytest.param("global_numpy", "global-random", False, marks=pytest.mark.slow),
        pytest.param("global_torch", "global-random", False, marks=pytest.mark.slow),
        ("Failing", "failing-samples", True),
        ("plain_file", "shared-handle", True),
        pytest.param("sqlite_handle", "shared-handle", True, marks=pytest.mark.slow),
        pytest.param("socket_handle", "shared-handle", True, marks=pytest.mark.slow),
        pytest.param("hdf5_handle", "shared-handle", True, marks=pytest.mark.slow),
        pytest.param("lmdb_handle", "shared-handle", True, marks=pytest.mark.slow),
        ("Reopening", "reopened-file", False),
        pytest.param("ReopeningHDF5", "reopened-file", False, marks=pytest.mark.slow),
        pytest.param("ReopeningSQLite", "reopened-file", False, marks=pytest.mark.slow),
        ("LargeImages", "oversized-images", False),
        pytest.param("LargeImagesByOpenCV", "oversized-images", False, marks=pytest.mark.slow),
        ("Floats", "floats", False),
        pytest.param("WholeFloats", "floats", False, marks=pytest.mark.slow),
        ("Lengths", "padding", False),
        ("Stragglers", "stragglers", False),
        ("Growing", "memory-growth", False),
        ("slow_collate", "slow-collate", False),
        ("restarting", "workers-restarted", False),
        pytest.param("restarting_torch", "workers-restarted", False, marks=pytest.mark.slow),
        ("too_many_workers", "too-many-workers", False),
        ("locked_on_threads", "gil-bound", True),
        ("handle_on_threads", "shared-handle", True),
        ("failing_on_threads", "fails-on-threads", True),
        ("prefetching", "prefetch-memory", True),
        ("shuffling", "shuffling", False),
        ("unsendable", "unsendable-batch", True),
        ("failing_loader", "failing-loader", True),
    ],
)
def test_the_disease_is_named_and_no_other(
    name: str, disease: str, is_serious: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seconds enough for the dataset that takes two to be made.
    findings = diagnose(tried(name, tmp_path, monkeypatch, 4.0 if name == "SlowToMake" else 2.0))
    assert [(finding.name, finding.is_serious) for finding in findings] == [(disease, is_serious)]
    (finding,) = findings
    assert finding.fix
    assert finding.gain is None or finding.gain >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", CURES)
def test_the_gain_is_what_the_cure_gains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {finding.name: finding.gain for finding in diagnose(tried(name, tmp_path, monkeypatch, 4.0))}
    promised, real = told[CURES[name].disease], CURES[name].gain()
    assert promised is not None
    # Where others use the cores as well, caches are cold, and a worker waits for its turn.
    factor = 1.5 if os.getloadavg()[0] < (os.cpu_count() or 1) else 3.0
    assert real / factor < promised < real * factor


@pytest.mark.parametrize(
    ("name", "granted", "disease", "is_serious"),
    [
        ("too_few_workers", {"cores": 16}, "too-few-workers", False),
        ("three_workers", {"cores": 1}, "too-many-workers", False),
        ("three_workers", {"local_ranks": 2}, "too-many-workers", False),
        ("large_batches", {"shared_bytes": 8 << 20}, "shared-memory", True),
        ("large_batches", {"open_files": 25}, "open-files", False),
        ("large_batches", {"memory_bytes": 16 << 20}, "prefetch-memory", True),
    ],
)
def test_what_depends_on_the_machine(
    name: str, granted: dict[str, Any], disease: str, is_serious: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = tried(name, tmp_path, monkeypatch)
    enough = Room(cores=2, memory_bytes=64 << 30, shared_bytes=64 << 30, open_files=4096)
    measured.room = enough
    assert diagnose(measured) == []
    measured.room = replace(enough, **granted)
    assert [(finding.name, finding.is_serious) for finding in diagnose(measured)] == [(disease, is_serious)]


def test_what_was_measured_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = tried("Waiting", tmp_path, monkeypatch)
    text = "\n".join(summary(measured))
    for told in ("Waiting: 5,000 samples", "p99", "computing", "A batch of 32", "8 threads made"):
        assert told in text
    facts = json.loads(json.dumps(as_dict(measured)))
    assert facts["dataset"] == "Waiting"
    assert facts["p50_s"] >= 0.004
    assert set(facts["samples_per_s_by_threads"]) == {"1", "2", "8"}


def test_samples_of_which_no_batch_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = tried("Anything", tmp_path, monkeypatch)
    assert measured.batch is None
    assert "The samples could not be put together into a batch" in summary(measured)


def test_what_ended_it_is_a_finding() -> None:
    measured = probe(f"{Path(__file__).parent / 'broken.py'}:HangingLater", seconds=0.5)
    found = [finding for finding in diagnose(measured) if finding.name == "ended-early"]
    assert [finding.severity for finding in found] == ["advice"], "nobody has asked for threads"
    assert as_dict(measured)["ended"] == measured.ended


# -- runs --------------------------------------------------------------------------------------------------------------


def epochs(loader: Any, count: int = 1, body_s: float = 0.0) -> None:
    for _ in range(count):
        for _ in loader:
            time.sleep(body_s)


def test_a_loader_is_asked_while_it_runs_and_its_recording_later(tmp_path: Path) -> None:
    loader = feedline.Loader(sick.Waiting(), 4, sampler=range(80), workers=1, persistent=True)
    iterator = iter(loader)
    assert feedline.doctor(loader) == []
    list(iterator)
    with feedline.record(loader, tmp_path / "run.json.gz"):
        epochs(loader, body_s=0.004)
        live = feedline.doctor(loader)
    loader.close()
    assert [finding.name for finding in live] in (["too-few-workers"], ["slow-samples"])  # cores decide
    assert (live[0].gain or 0) > 1.5
    assert live[0].name in str(live)
    later = feedline.doctor(tmp_path / "run.json.gz")
    assert [finding.name for finding in later] == [finding.name for finding in live]
    assert feedline.doctor(Recording.load(tmp_path / "run.json.gz")) == later


def test_the_dataset_of_a_loader_is_tried_if_that_is_asked_for() -> None:
    loader = feedline.Loader(sick.OwnRandom(), 4, workers=1)
    found = feedline.doctor(loader, seconds=2.0)
    loader.close()
    assert [finding.name for finding in found] == ["copied-random"]


def test_a_leak_is_seen_in_a_recording() -> None:
    recording = recording_of(400, make_ms=10, step_ms=12)
    recording.system["worker_memory"] = [5e8 + 4e6 * place for place in range(50)]
    found = {finding.name: finding for finding in diagnose_recording(recording)}
    assert "MiB in all" in found["memory-growth"].evidence
    recording.system["worker_memory"] = [5e8] * 50
    assert "memory-growth" not in {finding.name for finding in diagnose_recording(recording)}


def test_what_is_no_run() -> None:
    with pytest.raises(BadOption, match="was given Healthy, which is no loader"):
        feedline.doctor(sick.Healthy())  # type: ignore[arg-type]  # a user's mistake
    with pytest.raises(BadOption, match="no dataset in a recording"):
        feedline.doctor(recording_of(20), seconds=1.0)
    with pytest.raises(BadRecording, match="cannot be read"):
        feedline.doctor("not-there.json")
