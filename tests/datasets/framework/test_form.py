"""The form of a sample: every source treats `fields=` in the same way."""

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
from feedline.datasets import (
    ArrayDataset,
    HDF5Dataset,
    LMDBDataset,
    ParquetDataset,
)
from feedline.datasets.framework.form import Fields, Form, check_count, in_packed_order
from feedline.errors import BadOption, CorruptSource

AVAILABLE = ["image", "label", "name"]


@pytest.mark.parametrize(
    ("fields", "names", "built", "described"),
    [
        (None, ("image", "label", "name"), {"image": 0, "label": 1, "name": 2}, "{'image': A, 'label': B, 'name': C}"),
        ("label", ("label",), 0, "A"),
        (("name", "image"), ("name", "image"), (0, 1), "(A, B)"),
        (("name",), ("name",), (0,), "(A,)"),
        (["name", "image"], ("name", "image"), {"name": 0, "image": 1}, "{'name': A, 'image': B}"),
        ({"x": "image", "y": "image"}, ("image", "image"), {"x": 0, "y": 1}, "{'x': A, 'y': B}"),
    ],
)
def test_a_sample_has_the_form_of_fields(fields: Fields, names: tuple[str, ...], built: Any, described: str) -> None:
    form = Form.of(fields, AVAILABLE, "store")
    assert form.names == names
    assert form.build(list(range(len(names)))) == built
    assert type(form.build(list(range(len(names))))) is type(built)
    assert form.describe(["A", "B", "C"][: len(names)]) == described


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ("nome", "'nome'.*a.h5.*'image', 'label', 'name'"),
        (["image", "x"], "'x'"),
        ([], "no field"),
        ({}, "no field"),
        (["name", "name"], "twice"),
        (3, "fields=3"),
        (b"name", "fields=b'name'"),
        (iter(["name"]), "fields="),
        ((3, "name"), "3, but a.h5"),
    ],
)
def test_unknown_and_malformed_fields_are_rejected(fields: Any, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        Form.of(fields, AVAILABLE, "a.h5")


NAMES = ["zeta", "alpha", "mid", "älpha"]


@pytest.fixture
def samples() -> list[dict[str, Any]]:
    return [{name: np.full(2, number, np.float32) for name in NAMES} for number in range(5)]


@pytest.mark.parametrize(
    ("out", "kind"),
    [("a.h5", HDF5Dataset), ("a", ArrayDataset), ("a.parquet", ParquetDataset), ("a.lmdb", LMDBDataset)],
)
def test_fields_keep_their_order(tmp_path: Path, samples: list[dict[str, Any]], out: str, kind: Any) -> None:
    feedline.pack(samples, tmp_path / out, format="npy" if out == "a" else None, workers=0)
    dataset = kind(tmp_path / out)
    try:
        assert list(dataset[0]) == NAMES
        assert list(next(iter(feedline.Loader(dataset, 2)))) == NAMES
    finally:
        dataset.close()


def test_fields_added_later_come_last(tmp_path: Path, samples: list[dict[str, Any]]) -> None:
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
def test_files_without_valid_metadata_keep_their_own_order(tmp_path: Path, attribute: Any) -> None:
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
def test_no_stored_metadata_makes_a_field_disappear(names: list[str], stored: Any) -> None:
    for text in (json.dumps({"feedline": 1, "fields": stored}), json.dumps(stored), "{", "", None):
        assert sorted(in_packed_order(names, text)) == sorted(names)


@pytest.mark.parametrize(
    "stored", [None, "", "{", "[]", '{"count": 3}', '{"feedline": 1}', '{"feedline": 1, "count": "3"}']
)
def test_a_missing_or_invalid_count_is_not_compared(stored: str | None) -> None:
    check_count("a.tar", stored, 5)


def test_another_count_than_the_stored_one_is_rejected() -> None:
    for found in (2, 4):
        with pytest.raises(CorruptSource, match=rf"a\.tar has {found} samples, but 3 were packed.*Pack it again"):
            check_count("a.tar", b'{"feedline": 1, "count": 3}', found)
