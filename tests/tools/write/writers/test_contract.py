"""Tests that every writer has to pass."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from feedline.tools.write.schema import Column, Schema
from feedline.tools.write.writers.contract import FORMATS as TABLE
from tests.tools.write.stores import FORMATS, canonical, content, mixed
from tests.tools.write.writers.outputs import put, samples_in, writer_of, written

pytestmark = pytest.mark.sample(5)

every_format = pytest.mark.parametrize("format_", FORMATS)
SAMPLES = [mixed(number) for number in range(40)]


@every_format
def test_written_samples_are_read_back(tmp_path: Path, format_: str) -> None:
    path = written(format_, tmp_path, SAMPLES)
    assert canonical(samples_in(format_, path)) == canonical(SAMPLES)
    assert os.listdir(tmp_path) == [path.name], "temporary files are deleted"
    assert TABLE[format_].module.stored(path)["count"] == 40


@every_format
def test_equal_samples_give_equal_bytes(tmp_path: Path, format_: str) -> None:
    one, other = (written(format_, tmp_path / name, SAMPLES) for name in ("a", "b"))
    assert content(one) == content(other)


@every_format
def test_close_may_be_called_early_and_twice(tmp_path: Path, format_: str) -> None:
    writer = writer_of(format_, tmp_path, Schema.of(SAMPLES))
    put(writer, SAMPLES[:5])
    writer.close()
    writer.close()


@every_format
@pytest.mark.parametrize("name", ["näme ☃", "a.b", "a b", "x" * 80, "%s", "select", "con", "0", "-x", "a:b", "path"])
def test_odd_names_of_fields(tmp_path: Path, format_: str, name: str) -> None:
    samples: list[dict[str, Any]] = [{name: number, "x": "ä"} for number in range(3)]
    assert samples_in(format_, written(format_, tmp_path, samples)) == samples


@pytest.mark.parametrize(
    ("column", "held_by"),
    [
        (Column("x", "number", "<i8"), "lmdb hdf5 tar parquet npy"),
        (Column("x", "number", "<i8", nullable=True), "lmdb parquet"),
        (Column("x", "number", "<c16"), "lmdb hdf5 tar npy"),
        (Column("x", "number", "<f16"), "lmdb hdf5 tar npy"),
        (Column("x", "number", "<M8[h]"), "lmdb tar npy"),
        (Column("x", "number", "<M8[ns]"), "lmdb tar parquet npy"),
        (Column("x", "str"), "lmdb hdf5 tar parquet npy"),
        (Column("x", "bytes"), "lmdb hdf5 tar parquet"),
        (Column("x", "nested"), "lmdb tar"),
        (Column("x", "mixed"), "lmdb tar"),
        (Column("x", "ragged", "<f8", (-1,)), "lmdb hdf5 tar parquet"),
        (Column("x", "ragged", "<f8", (-1, -1)), "lmdb tar"),
        (Column("x", "array", "<f8", (3, 0)), "lmdb tar npy"),
        (Column("x", "array", "<U3", (2,)), "lmdb tar npy"),
        (Column("x", "array", "|u1", ((1 << 31) - 1,)), "lmdb hdf5 tar parquet npy"),
        (Column("x", "array", "|u1", (1 << 31,)), "lmdb hdf5 tar npy"),
        (Column("x", "array", "|u1", (1 << 32,)), "tar npy"),
        (Column("X", "str"), "lmdb hdf5 parquet npy"),
    ],
)
def test_which_formats_hold_a_column(column: Column, held_by: str) -> None:
    assert [name for name, format_ in TABLE.items() if format_.can_hold(column)] == held_by.split()


def test_nullable_arrays_need_a_newer_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    column = Column("x", "array", "<f8", (2,), nullable=True)
    for version in ("25.0.1", "26.0.0"):
        monkeypatch.setattr(pyarrow, "__version__", version)
        assert TABLE["parquet"].can_hold(column) == (version > "26")
