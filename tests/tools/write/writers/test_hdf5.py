from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from feedline.tools.write.schema import Column, Schema, Unfit
from feedline.tools.write.writers.hdf5 import Hdf5Writer, stored
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


def test_chunks_have_about_the_same_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.tools.write.writers.hdf5._CHUNK_BYTES", 8192)
    samples = [{"x": np.zeros(100), "large": np.zeros(10_000)} for _ in range(5)]
    path = written("hdf5", tmp_path, samples)
    with h5py.File(path) as file:
        assert file["x"].chunks == (8, 100)
        assert file["large"].chunks == (1, 10_000), "at least one row"


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (Column("x", "ragged", "<f8", (-1, -1)), "one-dimensional"),
        (Column("x", "ragged", "<f8", (-1,)), ""),
        (Column("x", "mixed"), "same type"),
        (Column("x", "nested"), "lmdb or tar"),
        (Column("x", "array", "<U3", (2,)), "only numbers"),
        (Column("x", "number", "<M8[D]"), "only numbers"),
        (Column("x", "array", "<f8", (0,)), "empty arrays"),
        (Column("x", "array", "<f8", (1 << 20, 1 << 10)), "exceeds the largest chunk"),
        (Column("x", "str", nullable=True), "cannot store None"),
    ],
)
def test_columns_that_cannot_be_stored(column: Column, words: str) -> None:
    reason = Hdf5Writer.cannot_hold(column)
    assert bool(reason) == bool(words)
    assert words in reason


@pytest.mark.parametrize("text", ["a\0b", "\0", "\udcff"])
def test_strings_that_cannot_be_stored(text: str) -> None:
    schema = Schema.of([{"x": "a"}])
    with pytest.raises(Unfit, match="which hdf5 cannot hold"):
        Hdf5Writer.encoded(schema, {"x": text})


@pytest.mark.parametrize("attribute", [None, "{", "[]", 3])
def test_files_that_pack_did_not_write_have_no_metadata(tmp_path: Path, attribute: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if attribute is not None:
            file.attrs["feedline"] = attribute
    assert stored(tmp_path / "a.h5") is None
