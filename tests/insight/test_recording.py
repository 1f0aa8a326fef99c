"""Recordings, and files that are not recordings."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadRecording
from feedline.insight.batch_rows import columns_of, row
from feedline.insight.recording import EpochSpan, Recording
from feedline.insight.stats import SlowSample, WorkerMemory


def a_recording() -> Recording:
    rows = [
        row(
            epoch=number // 10,
            ordinal=number % 10,
            worker=number % 2,
            samples=4,
            given=number * 1_000_003,
            began=number * 1_000_003 + 11,
            fetch=700_001,
            finished=number * 1_000_003 + 800_007,
            came=number * 1_000_003 + 900_001,
            asked=number * 1_000_003 + 500_000,
            got=(number + 1) * 1_000_003,
            body=499_997,
        )
        for number in range(20)
    ]
    return Recording(
        settings={"in_order": True, "cores": 2},
        environment={"python": "3.11"},
        started=1.5e9,
        epochs=[EpochSpan(0, 0, 1234, 0), EpochSpan(1, 10_000_031, 77, 10)],
        rows=columns_of(rows),
        stages={"decode": [[3, 123_456], [12, 654_321]]},
        slow_samples=[SlowSample(7, 0.25, 1)],
        system={"at": [0, 500_000_001], "cpu": [0.5, None]},
        log=["something happened"],
        counters={"workers": 2, "engine": "process", "batches": 20, "faults": {"skip": 1}},
        memory=[WorkerMemory(0, 1 << 20, 0)],
    )


def _saved() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        a_recording().save(Path(folder, "run.json"))
        return Path(folder, "run.json").read_bytes()


SAVED = _saved()


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_saved_recording_is_loaded_unchanged(name: str, tmp_path: Path) -> None:
    recording = a_recording()
    recording.save(tmp_path / name)
    loaded = Recording.load(tmp_path / name)
    for column, values in recording.rows.items():
        assert np.array_equal(values, loaded.rows[column]), f"{column}, to the nanosecond"
    assert (loaded.epochs, loaded.stages, loaded.system) == (recording.epochs, recording.stages, recording.system)
    assert loaded.stats().as_dict() == recording.stats().as_dict()
    assert [file.name for file in tmp_path.iterdir()] == [name], "nothing else is left"
    is_compressed = (tmp_path / name).read_bytes()[:2] == b"\x1f\x8b"
    assert is_compressed == name.endswith(".gz")


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.99])
def test_a_truncated_file_is_reported_as_such(name: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / name
    a_recording().save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BadRecording, match=r"was cut off after \d+ bytes"):
        Recording.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a recording: "),
        (b"hello", "is not a recording: "),
        (b"\xff\xfe\x00", "is not a recording: "),
        (b"[1, 2]", 'is not a recording: its "format"'),
        (b'{"batches": 3}', 'is not a recording: its "format"'),
        (b'{"format": "feedline recording", "version": 99}', "of version 99, but this feedline reads version 1"),
        (b'{"format": "feedline recording", "version": 1}', "damaged or edited"),
        (gzip.compress(b"hello", mtime=0), "is not a recording: "),
    ],
)
def test_files_that_are_not_recordings_are_rejected_with_the_reason(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(BadRecording, match=message):
        Recording.load(path)


@given(place=st.floats(0, 1, exclude_max=True), flipped=st.integers(1, 255))
def test_a_damaged_recording_is_reported_as_such(place: float, flipped: int) -> None:
    data = bytearray(SAVED)
    data[int(place * len(data))] ^= flipped
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.json")
        path.write_bytes(data)
        with pytest.raises(BadRecording, match=r"run\.json"):
            Recording.load(path)


@pytest.mark.slow
def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "run.json.gz").write_bytes(gzip.compress(b" " * (1 << 27), 1))
    tracemalloc.start()
    with pytest.raises(BadRecording, match=r"run\.json\.gz is not a recording: .* more than 1\d,\d{3},\d{3},"):
        Recording.load(tmp_path / "run.json.gz")
    assert tracemalloc.get_traced_memory()[1] < 3 << 24  # twice the text, while its pieces are joined
    tracemalloc.stop()


@pytest.mark.parametrize(
    "index",
    [{("a", 1): b"x"}, math.nan, "g\u00e4ns.jpg", "\udcff", object()],
    ids=["dict", "nan", "umlaut", "surrogate", "object"],
)
def test_samples_with_any_index_can_be_saved(index: Any, tmp_path: Path) -> None:
    recording = a_recording()
    recording.slow_samples = [SlowSample(index, 1.0, 0)]
    recording.save(tmp_path / "run.json")
    for line in (tmp_path / "run.json").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    (slow,) = Recording.load(tmp_path / "run.json").slow_samples
    assert slow.index == (index if isinstance(index, str) else repr(index))
