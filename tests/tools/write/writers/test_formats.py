from __future__ import annotations

from pathlib import Path

import pytest

from feedline.errors import BadOption
from feedline.tools.write.writers.contract import format_of

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
