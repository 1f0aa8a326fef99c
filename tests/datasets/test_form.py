"""The form of a sample: one rule for `fields=` of every source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from feedline.datasets import (
    ArrayDataset,
    FileDataset,
    HDF5Dataset,
    LMDBDataset,
    ParquetDataset,
    SQLDataset,
    TarDataset,
)
from feedline.datasets.form import Fields, Form
from feedline.errors import BadOption

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
def test_a_sample_has_the_form_in_which_fields_are_named(
    fields: Fields, names: tuple[str, ...], built: Any, described: str
) -> None:
    form = Form.of(fields, AVAILABLE, "store")
    assert form.names == names
    assert form.build(list(range(len(names)))) == built
    assert type(form.build(list(range(len(names))))) is type(built)
    assert form.describe(["A", "B", "C"][: len(names)]) == described


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("nome", ["'nome'", "'image', 'label', 'name'", "a.h5"]),
        (["image", "x"], ["'x'"]),
        ([], ["no field"]),
        ({}, ["no field"]),
        (["name", "name"], ["twice"]),
        (3, ["fields=3 names no fields", "a tuple"]),
        (b"name", ["fields=b'name' names no fields"]),
        (iter(["name"]), ["names no fields"]),
        ((3, "name"), ["names 3, but a.h5 has 'image'"]),
    ],
)
def test_fields_that_are_not_there(fields: Any, words: list[str]) -> None:
    with pytest.raises(BadOption) as caught:
        Form.of(fields, AVAILABLE, "a.h5")
    for word in words:
        assert word in str(caught.value)


def test_every_source_says_so_when_it_is_made(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["image"] = np.arange(3)
    (tmp_path / "a.lmdb").mkdir()
    (tmp_path / "a.tar").write_bytes(b"\0" * 1024)
    fields: Any = 3
    makers: list[Callable[[], Any]] = [
        lambda: HDF5Dataset(tmp_path / "a.h5", fields=fields),
        lambda: LMDBDataset(tmp_path / "a.lmdb", fields=fields),
        lambda: ParquetDataset(tmp_path / "a.parquet", fields=fields),
        lambda: SQLDataset("sqlite:///a.db", "SELECT 1 AS id", key="id", fields=fields),
        lambda: TarDataset(str(tmp_path / "a.tar"), fields=fields).stream(),
        lambda: ArrayDataset({"image": np.arange(3)}, fields=fields),
        lambda: FileDataset(tmp_path, fields=fields),
    ]
    for make in makers:
        with pytest.raises(BadOption, match="fields=3 names no fields"):
            make()


def test_a_store_without_fields_and_one_with_many() -> None:
    with pytest.raises(BadOption, match="no fields"):
        Form.of("x", [], "a.h5")
    with pytest.raises(BadOption, match="and 38 more"):
        Form.of("x", [str(number) for number in range(50)], "a.h5")
