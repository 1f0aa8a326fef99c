from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline import audio
from feedline.audio import duration_index as module
from feedline.datasets.derived.split import Subset
from feedline.errors import BadOption, CorruptSource, DataWarning, SourceError
from feedline.samplers import LengthBucketBatchSampler
from tests.audio.sounds import encoded, sound, write_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "sounds", {"cat": 5, "dog": 4})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the names of files whose headers are read."""
    names: list[str] = []
    real = audio.info

    def noted(path: Any) -> audio.AudioInfo:
        names.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(module, "info", noted)
    return names


def test_durations_of_a_dataset_a_part_and_paths(root: Path) -> None:
    dataset = audio.AudioFolder(root)
    expected = [samples.shape[1] / 16_000 for samples, _ in dataset]
    assert audio.durations(dataset).tolist() == expected
    assert audio.durations([path for path, _ in dataset.samples]).tolist() == expected
    part, _ = feedline.split(dataset, [0.5, 0.5], seed=0)
    assert audio.durations(part).tolist() == [expected[index] for index in part.indices]
    given: Any = dataset  # Any: torch's annotations require its own class
    subset = torch.utils.data.Subset[Any](given, [2, 0])
    assert audio.durations(subset).tolist() == [expected[2], expected[0]]
    assert audio.durations([]).tolist() == []
    sampler = LengthBucketBatchSampler(audio.durations(dataset, threads=3), 3, seed=0)
    assert sorted(index for batch in sampler for index in batch) == list(range(9))


def test_a_part_reads_only_its_own_headers(root: Path, tmp_path: Path, read: list[str]) -> None:
    (root / "cat" / "victim.wav").write_bytes(encoded(sound(), "WAV")[:999])
    dataset = audio.AudioFolder(root)
    expected = [0.5, 1.5]
    for index, seconds in zip((1, 3), expected, strict=True):
        Path(dataset.path_of(index)).write_bytes(encoded(sound(seconds)))
    part = Subset(dataset, np.array([3, 1, -7]))
    assert audio.durations(part, cache=tmp_path / "cache").tolist() == [1.5, 0.5, 1.5]
    assert sorted(read) == ["1.flac", "3.flac"]
    inner = Subset(part, np.array([1]))
    assert audio.durations(inner, cache=tmp_path / "cache").tolist() == [0.5]
    assert len(read) == 2
    with pytest.warns(DataWarning, match=r"1 of 10 audio files.*victim\.wav"):
        whole = audio.durations(dataset, cache=tmp_path / "cache", damaged=0.25)
    assert len(read) == 10
    assert [whole[1], whole[3], whole[5]] == [0.5, 1.5, 0.25]


def test_samples_that_are_not_files_are_rejected_at_the_first_one() -> None:
    def samples() -> Any:
        yield np.zeros(3), 1
        raise AssertionError("a second sample was made")

    with pytest.raises(BadOption, match=r"tuple.*not a path"):
        audio.durations(samples())


@pytest.mark.parametrize("change", ["size", "time"])
def test_only_the_header_of_a_changed_file_is_read_again(
    root: Path, tmp_path: Path, read: list[str], change: str
) -> None:
    dataset = audio.AudioFolder(root)
    before = audio.durations(dataset, cache=tmp_path / "cache")
    assert len(read) == 9
    victim = root / "cat" / "3.flac"
    if change == "size":
        victim.write_bytes(encoded(sound(0.25)))
    else:
        os.utime(victim, ns=(1, 1))
    read.clear()
    after = audio.durations(dataset, cache=tmp_path / "cache")
    assert read == ["3.flac"]
    assert after[3] == (0.25 if change == "size" else before[3])
    assert np.array_equal(np.delete(after, 3), np.delete(before, 3))
    audio.durations(dataset, cache=tmp_path / "cache")
    assert read == ["3.flac"]


def test_no_index_is_stored_for_few_files(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "home"))
    audio.durations(audio.AudioFolder(root))
    assert not (tmp_path / "home").exists()
    monkeypatch.setattr(module, "_WORTH_KEEPING", 9)
    audio.durations(audio.AudioFolder(root), cache=False)
    assert not (tmp_path / "home").exists()
    audio.durations(audio.AudioFolder(root))
    assert len(list((tmp_path / "home").glob("*.durations"))) == 1


def test_damaged_files(root: Path, tmp_path: Path) -> None:
    (root / "cat" / "victim.wav").write_bytes(encoded(sound(), "WAV")[:999])
    dataset = audio.AudioFolder(root)
    with pytest.raises(CorruptSource, match=r"victim\.wav.*damaged=0\.0"):
        audio.durations(dataset, cache=tmp_path / "cache")
    with pytest.warns(DataWarning, match=r"1 of 10 audio files.*victim\.wav"):
        found = audio.durations(dataset, damaged=0.5, cache=tmp_path / "cache")
    assert found[5] == 0.5
    (root / "cat" / "victim.wav").write_bytes(encoded(sound(), "WAV"))
    assert audio.durations(dataset, cache=tmp_path / "cache")[5] == 3.0


@pytest.mark.parametrize("given", [3, "a.flac", Path("a.flac"), [b"fLaC"], [("a", 1)]])
def test_rejects_values_without_durations(given: Any) -> None:
    with pytest.raises(BadOption, match="path"):
        audio.durations(given)


@pytest.mark.parametrize("options", [{"threads": 0}, {"damaged": -1.0}, {"damaged": "0"}, {"cache": 3}])
def test_bad_options_are_rejected(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=f"{next(iter(options))}="):
        audio.durations([], **options)
    with pytest.raises(SourceError, match=r"missing\.flac"):
        audio.durations([tmp_path / "missing.flac"])
