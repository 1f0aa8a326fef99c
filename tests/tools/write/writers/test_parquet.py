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


@pytest.mark.parametrize("compression", [None, "zstd", "none"])
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
