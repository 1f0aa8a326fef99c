from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.tools.write.schema import Schema
from feedline.tools.write.writers.tar import header_of, member_names
from tests.tools.write.stores import pack_as, read, stored_in


@pytest.mark.parametrize("name", ["a" * 100, "a" * 101, "näme.txt"])
@pytest.mark.parametrize("size", [0, 511, 8**11 - 1, 8**11])
def test_headers_equal_those_of_tarfile(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o444
    assert header_of(name, size) == info.tobuf(tarfile.PAX_FORMAT)


def test_members_get_the_usual_names() -> None:
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


@pytest.mark.parametrize("metadata", [{"classes": ["cat", "dög"]}, {"classes": ["x" * 100] * 100}])
def test_readers_skip_the_comment(tmp_path: Path, metadata: dict[str, list[str]]) -> None:
    packed = pack_as("tar", tmp_path, [{"x": "a"}, {"x": ""}], metadata=metadata)
    data = packed.path.read_bytes()
    for mode in ("r:", "r|"):
        with tarfile.open(fileobj=io.BytesIO(data), mode=mode) as archive:
            assert archive.getnames() == ["000000000.x.txt", "000000001.x.txt"]
    meta = stored_in(packed.path)
    assert meta["count"] == 2
    assert meta["metadata"] == (metadata if len(str(metadata)) < 300 else {})


JPG, PNG, GIF = b"\xff\xd8\xff\xe0 jpg", b"\x89PNG\r\n\x1a\n png", b"GIF89a gif"


def test_every_picture_has_the_extension_of_its_own_bytes(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"image": data, "mask": mask, "label": number}
        for number, (data, mask) in enumerate([(JPG, PNG), (PNG, PNG), (b"?", GIF), (JPG, PNG)])
    ]
    packed = pack_as("tar", tmp_path, samples)
    with tarfile.open(packed.path) as archive:
        assert archive.getnames() == [
            *("000000000.jpg", "000000000.mask.png", "000000000.cls"),
            *("000000001.png", "000000001.mask.png", "000000001.cls"),
            *("000000002.image.bin", "000000002.mask.gif", "000000002.cls"),
            *("000000003.jpg", "000000003.mask.png", "000000003.cls"),
        ]
    assert read(packed) == samples
    assert member_names(Schema.from_json(stored_in(packed.path)["fields"])) == {
        "image": "jpg;png;image.bin",
        "mask": "mask.png;mask.gif",
        "label": "cls",
    }


def test_a_field_may_be_named_like_an_extension(tmp_path: Path) -> None:
    """If the picture were called png as well, one of the two would be lost."""
    samples = [{"image": PNG, "png": JPG}, {"image": JPG, "png": PNG}]
    packed = pack_as("tar", tmp_path, samples)
    assert read(packed) == samples
    with tarfile.open(packed.path) as archive:
        assert len(set(archive.getnames())) == 4
