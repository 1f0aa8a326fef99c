from __future__ import annotations

import sys
from pathlib import Path

import pytest

from feedline.errors import BadOption, MissingExtra
from feedline.tools.write.writers.contract import FORMATS, format_of

pytestmark = pytest.mark.sample(5)


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


@pytest.mark.parametrize("out", ["a", "a.zip", "a.tar.gz", ".h5", "a.h5/"[:-1] + "x"])
def test_rejects_unknown_suffixes(out: str) -> None:
    with pytest.raises(BadOption, match=r"does not select a format.*--format lmdb\|hdf5\|tar\|parquet\|npy"):
        format_of(Path(out), None)


def test_rejects_unknown_formats() -> None:
    with pytest.raises(BadOption, match="not one of lmdb, hdf5"):
        format_of(Path("a.h5"), "HDF5")


def test_every_format_is_complete() -> None:
    for name, format_ in FORMATS.items():
        assert format_.writer.format == name
        assert callable(format_.module.stored)
    suffixes = [suffix for format_ in FORMATS.values() for suffix in format_.suffixes]
    assert len(set(suffixes)) == len(suffixes)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingExtra, match=r"feedline\[lmdb\]"):
        _ = FORMATS["lmdb"].writer
