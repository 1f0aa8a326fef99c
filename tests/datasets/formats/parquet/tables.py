"""Tables that tests write to files."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from tests.datasets.contract import SourceContract

COUNT = 40


def images(count: int = COUNT) -> Any:
    """Return an array of 2 by 3 floats per row."""
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    values = pa.array(np.arange(6 * count, dtype=np.float32))
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(values, 6))


def samples(count: int = COUNT) -> list[dict[str, Any]]:
    """Return the rows of `table` as samples."""
    pictures = np.arange(6 * count, dtype=np.float32).reshape(count, 2, 3)
    return [
        {
            "image": pictures[i],
            "number": np.int64(i),
            "small": np.uint8(i),
            "name": f"nämé {i}",
            "blob": bytes([i % 256]) * (i % 5),
            "ragged": np.arange(i % 4, dtype=np.int32),
            "maybe": None if i % 7 == 3 else np.float64(i / 2),
            "price": decimal.Decimal(i) / 4,
            "meta": {"tags": [f"t{i}", "x"], "score": np.float32(i)},
        }
        for i in range(count)
    ]


def table(count: int = COUNT) -> Any:
    rows = samples(count)
    return pa.table(
        {
            "image": images(count),
            "number": pa.array([row["number"] for row in rows], pa.int64()),
            "small": pa.array([row["small"] for row in rows], pa.uint8()),
            "name": pa.array([row["name"] for row in rows], pa.string()),
            "blob": pa.array([row["blob"] for row in rows], pa.binary()),
            "ragged": pa.array([row["ragged"] for row in rows], pa.list_(pa.int32())),
            "maybe": pa.array([row["maybe"] for row in rows], pa.float64()),
            "price": pa.array([row["price"] for row in rows], pa.decimal128(9, 2)),
            "meta": pa.array(
                [{"tags": row["meta"]["tags"], "score": float(row["meta"]["score"])} for row in rows],
                pa.struct([("tags", pa.list_(pa.string())), ("score", pa.float32())]),
            ),
        }
    )


def write(path: Path, rows: Any, group: int = 7) -> Path:
    """Write a file in the format that its suffix indicates."""
    if path.suffix == ".parquet":
        pq.write_table(rows, path, row_group_size=group)
    elif path.suffix == ".feather":
        feather.write_feather(rows, path, compression="lz4", chunksize=group)
    elif path.suffix == ".arrow":
        feather.write_feather(rows, path, compression="uncompressed", chunksize=group)
    else:
        with pa.ipc.new_stream(path, rows.schema) as stream:
            stream.write_table(rows, max_chunksize=group)
    return path


class TableContract(SourceContract):
    """The contract with a file of `table`."""

    takes_fields = True
    source: Any
    """The class of the source."""
    name: str
    """The name of its file."""

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / self.name, table())

    def make_source(self, **options: Any) -> Any:
        return self.source(self.path, **options)

    def samples(self) -> list[Any]:
        return samples()

    def files(self) -> list[Path]:
        return [self.path]

    def rewrite(self) -> list[Any]:
        write(self.path, table().take(list(range(COUNT))[::-1]))
        return samples()[::-1]
