"""Several columns combined into one vector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest

from feedline import DataLoader, Loader
from feedline.datasets import ArrayDataset, ArrowDataset, CSVDataset, ParquetDataset
from feedline.errors import BadOption, SourceError
from tests.datasets.formats.parquet.tables import write

COUNT = 20
NAMES = ["b", "a", "c"]
FIELDS = {"features": NAMES, "label": "label", "name": "name"}


def table(**more: Any) -> pa.Table:
    columns = {name: (np.arange(COUNT) * 10 + place).astype(np.float32) for place, name in enumerate("abc")}
    texts = [f"row {number}" for number in range(COUNT)]
    return pa.table({**columns, "label": np.arange(COUNT), "name": texts, **more})


def vector(index: int) -> list[float]:
    return [index * 10.0 + 1, index * 10.0, index * 10.0 + 2]


@pytest.fixture(params=["parquet", "arrow", "csv"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "parquet":
        return ParquetDataset(write(tmp_path / "a.parquet", table(), 6), FIELDS)
    if request.param == "arrow":
        return ArrowDataset(write(tmp_path / "a.arrow", table(), 6), FIELDS)
    pa.csv.write_csv(table(), tmp_path / "a.csv")
    return CSVDataset(tmp_path / "a.csv", FIELDS, types=dict.fromkeys("abc", "float32"))


def test_the_vector_has_the_columns_in_the_given_order(dataset: Any) -> None:
    sample = dataset[7]
    assert sample["features"].dtype == np.float32
    assert (sample["features"].tolist(), sample["label"], sample["name"]) == (vector(7), 7, "row 7")
    assert repr(dataset).startswith(
        f"{type(dataset).__name__}(20 samples of {{'features': float32[3], 'label': int64[], 'name': string}}"
    )


@pytest.mark.parametrize("order", [[3], [1, 2, 0], [19, 0, 7, 7, 13]])
def test_batches(dataset: Any, order: list[int]) -> None:
    found = dataset.read_columns(np.array(order))
    assert found["features"].tolist() == [vector(index) for index in order]
    assert found["name"] == [f"row {index}" for index in order]


def test_tuples_with_a_vector_and_vectors_of_one_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", table(), 6)
    features, label = ParquetDataset(path, (NAMES, "label"))[4]
    assert (features.tolist(), label) == (vector(4), 4)
    (batch,) = list(Loader(ParquetDataset(path, ("a", ["b"], ["a", "b"])), COUNT))
    assert [column.shape for column in batch] == [(COUNT,), (COUNT, 1), (COUNT, 2)]


def test_the_error_for_a_null_names_column_and_row(tmp_path: Path) -> None:
    holes = [None if number == 8 else float(number) for number in range(COUNT)]
    path = write(tmp_path / "a.parquet", table(hole=pa.array(holes, pa.float32())), 6)
    dataset = ParquetDataset(path, {"features": ["a", "hole"]})
    assert dataset[7]["features"].tolist() == [70.0, 7.0]
    with pytest.raises(SourceError, match=r"Column 'hole' is null in row 2 of row group 1 of .*a\.parquet.*filters="):
        dataset.__getitems__([0, 8])
    left = ParquetDataset(path, {"features": ["a", "hole"]}, filters=~pc.field("hole").is_null())
    assert len(left) == len(list(DataLoader(left))) == COUNT - 1
    kept = list(DataLoader(dataset.stream(), batch_size=5, on_error="skip"))
    assert sum(len(batch["features"]) for batch in kept) == COUNT - 1


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"x": ["a", "label"]}, "'a' is float and 'label' is int64"),
        ({"x": ["a", "name"]}, "'name' is string"),
        ({"x": ["a", "z"]}, "'z', but .* has 'a', 'b'"),
        ({"x": []}, "no columns"),
        (["label", ["a", "b"]], "fields="),
    ],
)
def test_bad_vectors_are_rejected(tmp_path: Path, fields: Any, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        len(ParquetDataset(write(tmp_path / "a.parquet", table(), 6), fields))


def test_other_sources_reject_vectors() -> None:
    with pytest.raises(BadOption, match=r"asks for a vector of several fields.*in a transform"):
        ArrayDataset({"a": np.zeros(3), "b": np.zeros(3)}, fields={"x": ["a", "b"]})  # type: ignore[dict-item]
