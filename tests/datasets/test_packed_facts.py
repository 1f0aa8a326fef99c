from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline
from feedline.datasets import ArrayDataset, HDF5Dataset, LMDBDataset, ParquetDataset
from feedline.datasets.packed_facts import check_count, in_packed_order
from feedline.errors import CorruptSource

NAMES = ["zeta", "alpha", "mid", "älpha"]


@pytest.fixture
def samples() -> list[dict[str, Any]]:
    return [{name: np.full(2, number, np.float32) for name in NAMES} for number in range(5)]


@pytest.mark.parametrize(
    ("out", "kind"),
    [("a.h5", HDF5Dataset), ("a", ArrayDataset), ("a.parquet", ParquetDataset), ("a.lmdb", LMDBDataset)],
)
def test_fields_come_back_in_the_order_that_they_had(
    tmp_path: Path, samples: list[dict[str, Any]], out: str, kind: Any
) -> None:
    feedline.pack(samples, tmp_path / out, format="npy" if out == "a" else None, workers=0)
    dataset = kind(tmp_path / out)
    try:
        assert list(dataset[0]) == NAMES
        assert list(next(iter(feedline.Loader(dataset, 2)))) == NAMES
    finally:
        dataset.close()


def test_shards_too(tmp_path: Path, samples: list[dict[str, Any]]) -> None:
    feedline.pack(samples, tmp_path / "a", format="hdf5", samples_per_shard=2, workers=0)
    with_shards = HDF5Dataset(tmp_path / "a" / "shard-*.h5")
    assert list(with_shards[4]) == NAMES
    with_shards.close()


def test_what_was_added_later_comes_last(tmp_path: Path, samples: list[dict[str, Any]]) -> None:
    feedline.pack(samples, tmp_path / "a", format="npy", workers=0)
    np.save(tmp_path / "a" / "added.npy", np.zeros(5))
    (tmp_path / "a" / "mid.npy").unlink()
    assert list(ArrayDataset(tmp_path / "a")[0]) == ["zeta", "alpha", "älpha", "added"]
    feedline.pack(samples, tmp_path / "a.h5", workers=0)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["added"] = np.zeros(5)
    dataset = HDF5Dataset(tmp_path / "a.h5")
    assert list(dataset[0]) == [*NAMES, "added"]
    dataset.close()


@pytest.mark.parametrize("attribute", [None, "not JSON", "[1, 2]", '{"fields": [{"name": "b"}]}', 7, np.zeros(3)])
def test_files_of_others_stay_as_they_are(tmp_path: Path, attribute: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("b", "a"):
            file[name] = np.zeros(3)
        if attribute is not None:
            file.attrs["feedline"] = attribute
    dataset = HDF5Dataset(tmp_path / "a.h5")
    assert list(dataset[0]) == ["a", "b"]
    dataset.close()
    for name in ("b", "a"):
        np.save(tmp_path / f"{name}.npy", np.zeros(3))
    if isinstance(attribute, str):
        (tmp_path / "feedline.json").write_text(attribute)
    assert list(ArrayDataset(tmp_path)[0]) == ["a", "b"]


@given(
    names=st.lists(st.text(max_size=3), unique=True, max_size=6),
    stored=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "x"]), inner),
        max_leaves=8,
    ),
)
def test_nothing_that_is_stored_loses_a_field(names: list[str], stored: Any) -> None:
    for text in (json.dumps({"feedline": 1, "fields": stored}), json.dumps(stored), "{", "", None):
        assert sorted(in_packed_order(names, text)) == sorted(names)


@pytest.mark.parametrize(
    "stored", [None, "", "{", "[]", '{"count": 3}', '{"feedline": 1}', '{"feedline": 1, "count": "3"}']
)
def test_a_count_that_nobody_stored_is_not_compared(stored: str | None) -> None:
    check_count("a.tar", stored, 5)


def test_another_count_than_the_stored_one() -> None:
    for found in (2, 4):
        with pytest.raises(CorruptSource, match=rf"a\.tar has {found} samples, but 3 were packed.*Pack it again"):
            check_count("a.tar", b'{"feedline": 1, "count": 3}', found)
