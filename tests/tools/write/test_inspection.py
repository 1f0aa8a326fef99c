"""Inspection: types, examples, and a line that loads the store. Nothing is unpickled or run."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import CorruptSource, FeedlineError
from feedline.tools.write.inspection import inspect
from tests.tools.write.stores import Mixed


@pytest.mark.parametrize(
    ("values", "text", "example"),
    [
        ((1, 2, 6), "int64 numbers", "1"),
        ((None, 3), "int64 numbers or None", "3"),
        ((np.zeros((0, 3), np.float32),), "float32 arrays of shape (0, 3)", "[]"),
        (
            (np.zeros(9), np.zeros(8)),
            "float64 arrays of different shapes (1-dimensional)",
            "float64 array of shape (9,)",
        ),
        (("", "abc"), "strings", "''"),
        ((b"ab",), "bytes", "2 bytes, b'ab'"),
        ((b"\xff\xd8\xff",), "jpg", "3 bytes"),
        (({"a": 1}, [2]), "lists, dicts or values of different kinds", "{'a': 1}"),
    ],
)
def test_types_and_examples_of_fields(tmp_path: Path, values: tuple[Any, ...], text: str, example: str) -> None:
    feedline.pack([{"x": value} for value in values], tmp_path / "a.lmdb", workers=0)
    (field,) = inspect(str(tmp_path / "a.lmdb"))["fields"]
    assert field == {"name": "x", "type": text, "example": example}


class Trap:
    def __reduce__(self) -> Any:
        return os._exit, (13,)


def objects(folder: Path) -> None:
    np.save(folder / "o.npy", np.array([Trap(), None], object), allow_pickle=True)


def cache(folder: Path) -> None:
    feedline.precompute([{"x": {1, 2}}], folder, pickle=True, progress=False).close()


@pytest.mark.parametrize("make", [objects, cache])
def test_pickles_are_not_read(tmp_path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a module imported."""
    make(tmp_path)
    for path in (tmp_path, *tmp_path.iterdir()):
        with pytest.raises(FeedlineError):
            inspect(str(path))
    (tmp_path / "trap.py").write_text("import os\nos._exit(13)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FeedlineError, match="nothing at"):
        inspect("trap:dataset")


# -- verify ------------------------------------------------------------------------------------------------------------


def verify(path: Path) -> int:
    verified: int = inspect(str(path), verify=True)["verified"]
    return verified


def test_verifying_finds_a_missing_shard(tmp_path: Path) -> None:
    packed = feedline.pack(Mixed(), tmp_path / "out", format="tar", samples_per_shard=30, workers=0)
    assert verify(packed.path) == 100
    shards = sorted(packed.path.glob("shard-*"))
    shards[2].unlink()
    with pytest.raises(CorruptSource, match=r"it has 75 samples, but 100 were packed"):
        verify(packed.path)


def test_files_that_pack_did_not_write_are_read_to_their_end(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(300))
    assert verify(tmp_path / "a.npy") == 300
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for number in range(150):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 1000
            archive.addfile(info, io.BytesIO(np.random.default_rng(number).bytes(500).hex().encode()))
    assert verify(tmp_path / "a.tar.gz") == 150
    os.truncate(tmp_path / "a.tar.gz", (tmp_path / "a.tar.gz").stat().st_size - 100)
    inspect(str(tmp_path / "a.tar.gz"))  # the first samples are intact
    with pytest.raises(CorruptSource, match=r"a\.tar\.gz"):
        verify(tmp_path / "a.tar.gz")
