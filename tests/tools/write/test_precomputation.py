"""Precomputed samples are stored once, despite interruptions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.datasets.derived.cache import PrecomputedDataset
from feedline.datasets.derived.cache.sample_store import FILE
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from tests.datasets.contract import SourceContract
from tests.datasets.derived.cache.test_cached import Count
from tests.tools.write.stores import Stream


class Squares:
    def __init__(self, count: int = 50, power: int = 2) -> None:
        self.count = count
        self.power = power
        self.made = Count()

    def fingerprint(self) -> str:
        return f"{self.count} {self.power}"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.made += 1
        return {"x": np.full(20, index**self.power, np.int64), "name": f"{index}²"}


class TestPrecomputed(SourceContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        feedline.precompute(Squares(), tmp_path, progress=False)
        self.path = tmp_path

    def make_source(self, **options: Any) -> PrecomputedDataset:
        return PrecomputedDataset(self.path, **options)

    def samples(self) -> list[Any]:
        return [Squares()[index] for index in range(50)]


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=str)
def test_every_sample_is_stored_once(options: dict[str, Any], tmp_path: Path) -> None:
    dataset = Squares()
    stored = feedline.precompute(dataset, tmp_path / "out", progress=False, **options)
    assert [sample["x"][0] for sample in stored] == [index**2 for index in range(50)]
    assert dataset.made == 50
    again = feedline.precompute(dataset, tmp_path / "out", progress=False, **options)
    assert dataset.made == 50
    assert again[7]["name"] == "7²"
    stored.close()
    again.close()


class Breaking(Squares):
    """Raises at one sample while a file exists."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self.flag = flag

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 30 and self.flag.exists():
            raise RuntimeError("the power went out")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_run_resumes(workers: int, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    dataset = Breaking(flag)
    with pytest.raises(RuntimeError, match="power"):
        feedline.precompute(dataset, tmp_path / "out", workers=workers, progress=False)
    with pytest.raises(SourceError, match="are incomplete"):
        PrecomputedDataset(tmp_path / "out")[0]
    made = int(dataset.made)
    flag.unlink()
    with pytest.raises(SourceChanged, match="another dataset"):
        feedline.precompute(Squares(49), tmp_path / "out", progress=False)
    stored = feedline.precompute(dataset, tmp_path / "out", workers=workers, progress=False)
    assert [sample["x"][0] for sample in stored] == [index**2 for index in range(50)]
    assert int(dataset.made) <= 50 + (16 if workers else 0)
    assert made >= 16
    stored.close()


def test_damaged_samples_are_reported_and_computed_again(tmp_path: Path) -> None:
    dataset = Squares()
    feedline.precompute(dataset, tmp_path, progress=False).close()
    data = bytearray((tmp_path / FILE).read_bytes())
    data[-50] ^= 1
    (tmp_path / FILE).write_bytes(data)
    stored = PrecomputedDataset(tmp_path)
    with pytest.raises(CorruptSource, match=r"Sample 49 .* is damaged"):
        list(stored)
    stored.close()
    stored = feedline.precompute(dataset, tmp_path, progress=False)
    assert dataset.made == 51
    assert stored[49]["x"][3] == 49**2
    stored.close()
    (tmp_path / FILE).write_bytes(b"x" * 5000)
    with pytest.raises(CorruptSource, match="another version"):
        PrecomputedDataset(tmp_path)[0]


def test_rejects_a_folder_of_another_dataset_or_with_other_files(tmp_path: Path) -> None:
    feedline.precompute(Squares(), tmp_path / "a", progress=False).close()
    for other, version in ((Squares(power=3), None), (Squares(count=49), None), (Squares(), "2")):
        with pytest.raises(SourceChanged, match="overwrite=True"):
            feedline.precompute(other, tmp_path / "a", version=version, progress=False)
    stored = feedline.precompute(Squares(power=3), tmp_path / "a", overwrite=True, progress=False)
    assert stored[2]["x"][0] == 8
    stored.close()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(BadOption, match=r"contains other files.*new or empty"):
            feedline.precompute(Squares(), tmp_path / "b", overwrite=overwrite, progress=False)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["thesis.tex"]


class Noisy(Squares):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": feedline.rng().random(3)}


def test_random_and_iterable_datasets_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="map-style"):
        feedline.precompute(Stream(), tmp_path / "a")
    with pytest.raises(BadOption, match="draws random numbers"):
        feedline.precompute(Noisy(), tmp_path / "a", progress=False)
    stored = [
        feedline.precompute(Noisy(), tmp_path / name, freeze_random=True, seed=3, workers=workers, progress=False)
        for name, workers in (("a", 0), ("b", 2))
    ]
    assert [sample["x"].tolist() for sample in stored[0]] == [sample["x"].tolist() for sample in stored[1]]
    for one in stored:
        one.close()


def test_an_open_dataset_does_not_read_samples_of_another_one(tmp_path: Path) -> None:
    stored = feedline.precompute([1, 2, 3, 4], tmp_path, progress=False)
    assert stored[0] == 1
    again = feedline.precompute([10, 20], tmp_path, overwrite=True, progress=False)
    assert stored[1] == 2  # from the file that it has open
    stored.close()
    with pytest.raises(SourceChanged, match="now contains samples of another dataset"):
        stored[1]
    assert list(again) == [10, 20]
    stored.close()
    again.close()
