from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import feedline
from feedline.errors import BadOption, CorruptSource
from feedline.packing.contents import look
from feedline.packing.verify import verify
from tests.packing.stores import FORMATS, SHARDED, SINGLE, Mixed


@pytest.mark.parametrize("format_", FORMATS)
def test_what_was_packed(tmp_path: Path, format_: str) -> None:
    counts: list[int] = []
    packed = feedline.pack(Mixed(600), tmp_path / SINGLE[format_], format=format_, workers=0)
    assert verify(look(packed.path), counts.append) == packed.digest
    assert counts == [256, 512]


@pytest.mark.parametrize("format_", SHARDED)
def test_shards(tmp_path: Path, format_: str) -> None:
    packed = feedline.pack(Mixed(), tmp_path / "out", format=format_, samples_per_shard=30, workers=0)
    assert verify(look(packed.path)) == packed.digest
    shards = sorted(packed.path.glob("shard-*"))
    shards[2].unlink()
    with pytest.raises(CorruptSource, match=r"it has 70 samples .*, but 100 with digest"):
        verify(look(packed.path))


def test_shards_that_changed_places(tmp_path: Path) -> None:
    packed = feedline.pack(Mixed(), tmp_path / "out", format="parquet", samples_per_shard=50, workers=0)
    one, other = sorted(packed.path.glob("shard-*"))
    os.rename(one, tmp_path / "aside")
    os.rename(other, one)
    os.rename(tmp_path / "aside", other)
    with pytest.raises(CorruptSource, match="damaged or was changed"):
        verify(look(packed.path))


def test_a_value_that_was_changed(tmp_path: Path) -> None:
    packed = feedline.pack(Mixed(), tmp_path / "out.h5", workers=0)
    with h5py.File(packed.path, "r+") as file:
        file["label"][7] = 77
    with pytest.raises(CorruptSource, match="Pack it again, or restore it"):
        verify(look(packed.path))


def test_files_of_others(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(BadOption, match="has no digest"):
        verify(look(tmp_path / "a.npy"))


def test_a_damaged_member(tmp_path: Path) -> None:
    samples: list[Any] = [{"x": np.arange(100)} for _ in range(5)]
    packed = feedline.pack(samples, tmp_path / "out.tar", workers=0)
    contents = look(packed.path)
    data = bytearray(packed.path.read_bytes())
    place = data.rindex(b"\x93NUMPY")
    data[place : place + 6] = b"broken"
    packed.path.write_bytes(data)
    with pytest.raises(CorruptSource, match="reading sample 4 failed"):
        verify(contents)
