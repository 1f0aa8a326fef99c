from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from feedline.packing.schema import Schema
from feedline.packing.writers.contract import Layout, Summary
from feedline.packing.writers.tar import TarWriter, header_of, member_names, stored


@pytest.mark.parametrize("name", ["000000000.jpg", "a" * 100, "a" * 101, "näme.txt", "x"])
@pytest.mark.parametrize("size", [0, 1, 511, 8**11 - 1, 8**11, 1 << 40])
def test_headers_are_those_of_tarfile(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o444
    assert header_of(name, size) == info.tobuf(tarfile.PAX_FORMAT)


def test_usual_names_come_out() -> None:
    sample = {"image": b"\xff\xd8\xff\xe0", "label": 3, "text": "a", "x": np.zeros(2), "meta": {"a": 1}, "raw": b"?"}
    assert member_names(Schema.of([sample])) == {
        "image": "jpg",
        "label": "cls",
        "text": "text.txt",
        "x": "x.npy",
        "meta": "meta.json",
        "raw": "raw.bin",
    }
    assert member_names(Schema.of([{"image": b"\xff\xd8\xff", "jpg": b"\xff\xd8\xff"}])) == {
        "image": "image.jpg",
        "jpg": "jpg",
    }
    assert member_names(Schema.of([{"label": np.int32(3)}])) == {"label": "label.npy"}, "its type is kept"


@pytest.mark.parametrize("facts", [{}, {"classes": ["cat", "dög"]}, {"classes": ["x" * 100] * 100}])
def test_the_comment_is_passed_over_by_readers(tmp_path: Path, facts: dict[str, list[str]]) -> None:
    writer = TarWriter(tmp_path / "a.tar", Layout())
    assert writer.resume() is None
    writer.begin(Schema.of([{"x": "a"}]))
    writer.write([{"x": "a"}, {"x": ""}])
    writer.checkpoint({})
    writer.finish(Summary(2, "ab" * 16, facts=facts))
    data = (tmp_path / "a.tar").read_bytes()
    for mode in ("r:", "r|"):
        with tarfile.open(fileobj=io.BytesIO(data), mode=mode) as archive:
            assert archive.getnames() == ["000000000.x.txt", "000000001.x.txt"]
    meta = stored(tmp_path / "a.tar")
    assert meta is not None
    assert (meta["count"], meta["digest"]) == (2, "ab" * 16)
    assert meta["facts"] == (facts if len(str(facts)) < 300 else {})


def test_an_unfinished_file_has_nothing_stored(tmp_path: Path) -> None:
    writer = TarWriter(tmp_path / "a.tar", Layout())
    writer.begin(Schema.of([{"x": "a"}]))
    writer.write([{"x": "a"}])
    writer.checkpoint({})
    writer.close()
    assert stored(tmp_path / "a.tar") is None
