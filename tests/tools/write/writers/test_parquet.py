from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.datasets import ParquetDataset
from feedline.errors import CorruptSource, PackError
from tests.tools.write.stores import pack_as, read


def test_pyarrow_reads_the_output(tmp_path: Path) -> None:
    samples: list[Any] = [
        {"x": np.full((2, 3), 1, np.uint8), "n": 1, "s": "ä", "b": b"\0", "r": np.arange(3), "o": None},
        {"x": np.full((2, 3), 2, np.uint8), "n": 2, "s": "", "b": b"", "r": np.arange(0), "o": 4},
    ]
    packed = pack_as("parquet", tmp_path, samples)
    table = pq.read_table(packed.path)
    assert table.schema.field("x").type == pa.fixed_shape_tensor(pa.uint8(), (2, 3))
    assert table.column("n").to_pylist() == [1, 2]
    assert table.column("r").to_pylist() == [[0, 1, 2], []]
    assert table.column("o").to_pylist() == [None, 4]
    assert not table.schema.field("n").nullable
    assert [sample["o"] for sample in read(packed)] == [None, 4]


@pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 26, reason="pyarrow before 26 cannot read them")
def test_nullable_arrays_are_read_back(tmp_path: Path) -> None:
    samples: list[Any] = [{"x": np.ones(2)}, {"x": None}, {"x": np.zeros(2)}]
    found = read(pack_as("parquet", tmp_path, samples))
    assert [None if one["x"] is None else one["x"].tolist() for one in found] == [[1, 1], None, [0, 0]]


def test_row_groups_have_about_the_same_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.tools.write.writers.parquet._GROUP_BYTES", 8000)
    samples = [{"x": np.full(100, number)} for number in range(50)]
    packed = pack_as("parquet", tmp_path, samples)
    meta = pq.read_metadata(packed.path)
    assert [meta.row_group(number).num_rows for number in range(meta.num_row_groups)] == [10] * 5
    assert [int(one["x"][0]) for one in read(packed)] == list(range(50))


@pytest.mark.parametrize("compression", [None, "snappy", "zstd", "lz4", "gzip", "none"])
def test_compression_is_applied(tmp_path: Path, compression: str | None) -> None:
    path = pack_as("parquet", tmp_path, [{"x": np.zeros(100)}], compression=compression).path
    name = pq.read_metadata(path).row_group(0).column(0).compression.lower()
    assert name == {None: "snappy", "none": "uncompressed"}.get(compression, compression)


def test_dates_are_read_back(tmp_path: Path) -> None:
    """Parquet stores seconds as milliseconds; the times are equal."""
    units = ("D", "s", "ms", "us", "ns")
    sample = {unit: np.datetime64("2020-01-02T03:04:05.123456789").astype(f"M8[{unit}]") for unit in units}
    samples = [sample | {"old": np.datetime64("1200-01-01"), "day": None if i else sample["D"]} for i in range(3)]
    packed = pack_as("parquet", tmp_path, samples)
    found = read(packed)
    assert found == samples
    assert [value.dtype for value in found[0].values()][:5] == [f"M8[{unit}]" for unit in ("D", "ms", "ms", "us", "ns")]
    with pytest.raises(PackError, match="NaT"):
        pack_as("parquet", tmp_path / "no", [*samples, samples[0] | {"s": np.datetime64("NaT", "s")}])


def test_every_page_has_a_checksum(tmp_path: Path) -> None:
    """A changed byte is detected in every page."""
    path = pack_as("parquet", tmp_path, [{"x": np.full(50, number), "s": "text"} for number in range(20)]).path
    data = path.read_bytes()
    columns = pq.read_metadata(path).row_group(0)
    for number in range(columns.num_columns):
        column = columns.column(number)
        first = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        end = first + column.total_compressed_size
        path.write_bytes(data[: end - 2] + bytes([data[end - 2] ^ 1]) + data[end - 1 :])
        with pytest.raises(CorruptSource, match=r"CRC|checksum"):
            ParquetDataset(path)[0]
