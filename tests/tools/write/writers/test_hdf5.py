from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from feedline.tools.write.schema import Schema
from tests.tools.write.writers.outputs import finish, put, samples_in, writer_of, written

pytestmark = pytest.mark.sample(5)

FIELDS: dict[str, Any] = {
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "number": 3.5,
    "flag": True,
    "complex": 1 + 2j,
    "half": np.float16(0.5),
    "text": "ä☃",
    "bytes": b"\0a\0",
    "ragged": np.arange(3, dtype=np.float32),
}


def test_h5py_reads_the_output(tmp_path: Path) -> None:
    second = {**FIELDS, "ragged": np.zeros(0, np.float32), "text": "", "bytes": b""}
    path = written("hdf5", tmp_path, [FIELDS, second])
    with h5py.File(path) as file:
        assert list(file) == list(FIELDS), "in the order of the sample"
        assert file["array"].shape == (2, 2, 3)
        assert file["text"].asstr()[0] == "ä☃"
        assert file["bytes"].attrs["feedline"] == b"bytes"
        assert file["ragged"][0].tolist() == [0, 1, 2]
        assert file["half"].dtype == np.float16
    first = samples_in("hdf5", path)[0]
    assert (first["text"], first["bytes"], bool(first["flag"])) == ("ä☃", b"\0a\0", True)


@pytest.mark.parametrize("values", [[[1, 2], [3, 4]], [[1], [2]], [[], []]])
def test_ragged_rows_of_equal_length(tmp_path: Path, values: list[list[int]]) -> None:
    """h5py mistakes a list of arrays of equal length for a table."""
    samples = [{"x": np.array(value, np.int64)} for value in values]
    writer = writer_of("hdf5", tmp_path, Schema.of(samples, ragged=["x"]))
    put(writer, samples)
    finish(writer, 2)
    assert [sample["x"].tolist() for sample in samples_in("hdf5", writer.path)] == values


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_compression_makes_the_file_smaller(tmp_path: Path, compression: str) -> None:
    samples = [{"x": np.zeros(1000), "text": "a"} for _ in range(50)]
    small = written("hdf5", tmp_path / "small", samples, compression=compression)
    assert small.stat().st_size < written("hdf5", tmp_path / "large", samples).stat().st_size / 5
    assert len(samples_in("hdf5", small)) == 50
