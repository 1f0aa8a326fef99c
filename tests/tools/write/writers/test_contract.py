"""Tests that every writer has to pass; packing tests of all formats are in `tests/tools/write`."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedline.tools.write.schema import Column
from feedline.tools.write.writers.contract import FORMATS as TABLE
from feedline.tools.write.writers.contract import format_of
from tests.tools.write.stores import FORMATS, pack_as, read

ODD_NAMES = ("näme ☃", "a.b", "a b", "x" * 80, "%s", "select", "con", "0", "-x", "a:b", "path")


@pytest.mark.parametrize("format_", FORMATS)
def test_odd_names_of_fields(tmp_path: Path, format_: str) -> None:
    samples = [dict.fromkeys(ODD_NAMES, number) for number in range(3)]
    assert read(pack_as(format_, tmp_path, samples)) == samples


@pytest.mark.parametrize(
    ("column", "held_by"),
    [
        (Column("x", "number", "<i8"), "lmdb hdf5 tar parquet npy"),
        (Column("x", "number", "<i8", nullable=True), "lmdb parquet"),
        (Column("x", "number", "<c16"), "lmdb hdf5 tar npy"),
        (Column("x", "number", "<M8[h]"), "lmdb tar npy"),
        (Column("x", "number", "<M8[ns]"), "lmdb tar parquet npy"),
        (Column("x", "str"), "lmdb hdf5 tar parquet npy"),
        (Column("x", "bytes"), "lmdb hdf5 tar parquet"),
        (Column("x", "nested"), "lmdb tar"),
        (Column("x", "mixed"), "lmdb tar"),
        (Column("x", "ragged", "<f8", (-1,)), "lmdb hdf5 tar parquet"),
        (Column("x", "array", "<f8", (3, 0)), "lmdb tar npy"),
        (Column("x", "array", "|u1", (1 << 31,)), "lmdb hdf5 tar npy"),
        (Column("x", "array", "|u1", (1 << 32,)), "tar npy"),
        (Column("X", "str"), "lmdb hdf5 parquet npy"),
    ],
)
def test_which_formats_hold_a_column(column: Column, held_by: str) -> None:
    assert [name for name, format_ in TABLE.items() if format_.can_hold(column)] == held_by.split()


@pytest.mark.parametrize(
    ("out", "name"),
    [
        ("a.H5", "hdf5"),
        ("a.hdf5", "hdf5"),
        ("a.b.tar", "tar"),
        ("a.mdb", "lmdb"),
        ("a.pq", "parquet"),
        ("a.npy", "npy"),
    ],
)
def test_suffixes_select_a_format(out: str, name: str) -> None:
    assert format_of(Path(out), None).name == name
    assert format_of(Path(out), "lmdb").name == "lmdb", "an explicit format has precedence"
