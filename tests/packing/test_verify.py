from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import feedline
from feedline.errors import CorruptSource
from feedline.packing.inspection import inspect
from tests.packing.stores import FORMATS, SHARDED, SINGLE, Mixed

pytestmark = pytest.mark.sample(5)


def verify(path: Path) -> dict[str, Any]:
    verified: dict[str, Any] = inspect(str(path), verify=True)["verified"]
    return verified


@pytest.mark.slow
@pytest.mark.parametrize("format_", FORMATS)
def test_what_was_packed(tmp_path: Path, format_: str) -> None:
    packed = feedline.pack(Mixed(600), tmp_path / SINGLE[format_], format=format_, workers=0)
    assert verify(packed.path) == {"samples": 600, "digest": packed.digest}


@pytest.mark.parametrize("format_", SHARDED)
def test_shards(tmp_path: Path, format_: str) -> None:
    packed = feedline.pack(Mixed(), tmp_path / "out", format=format_, samples_per_shard=30, workers=0)
    assert verify(packed.path)["digest"] == packed.digest
    shards = sorted(packed.path.glob("shard-*"))
    shards[2].unlink()
    with pytest.raises(CorruptSource, match=r"it has 70 samples .*, but 100 with digest"):
        verify(packed.path)


def test_shards_that_changed_places(tmp_path: Path) -> None:
    packed = feedline.pack(Mixed(), tmp_path / "out", format="parquet", samples_per_shard=50, workers=0)
    one, other = sorted(packed.path.glob("shard-*"))
    os.rename(one, tmp_path / "aside")
    os.rename(other, one)
    os.rename(tmp_path / "aside", other)
    with pytest.raises(CorruptSource, match="damaged or was changed"):
        verify(packed.path)


def test_a_value_that_was_changed(tmp_path: Path) -> None:
    packed = feedline.pack(Mixed(), tmp_path / "out.h5", workers=0)
    with h5py.File(packed.path, "r+") as file:
        file["label"][7] = 77
    with pytest.raises(CorruptSource, match=r"'label' in .* is damaged"):
        verify(packed.path)
    with h5py.File(packed.path, "r+") as file:  # without checksums, as earlier versions wrote it
        facts = json.loads(file.attrs["feedline"])
        file.attrs["feedline"] = json.dumps({name: facts[name] for name in facts if name not in ("crc32", "checksum")})
    with pytest.raises(CorruptSource, match="Pack it again, or restore it"):
        verify(packed.path)


def test_files_of_others_are_read_to_their_end(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(300))
    assert verify(tmp_path / "a.npy") == {"samples": 300, "digest": None}
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for number in range(150):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 1000
            archive.addfile(info, io.BytesIO(np.random.default_rng(number).bytes(500).hex().encode()))
    assert verify(tmp_path / "a.tar.gz") == {"samples": 150, "digest": None}
    os.truncate(tmp_path / "a.tar.gz", (tmp_path / "a.tar.gz").stat().st_size - 100)
    inspect(str(tmp_path / "a.tar.gz"))  # the first samples are whole
    with pytest.raises(CorruptSource, match=r"a\.tar\.gz"):
        verify(tmp_path / "a.tar.gz")


def test_a_damaged_member(tmp_path: Path) -> None:
    samples: list[Any] = [{"x": np.arange(100)} for _ in range(5)]
    packed = feedline.pack(samples, tmp_path / "out.tar", workers=0)
    data = bytearray(packed.path.read_bytes())
    place = data.rindex(b"\x93NUMPY")
    data[place : place + 6] = b"broken"
    packed.path.write_bytes(data)
    with pytest.raises(CorruptSource, match=r"out\.tar.*sample '000000004'"):
        verify(packed.path)
