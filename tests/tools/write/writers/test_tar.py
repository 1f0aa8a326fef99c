from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.tools.write.schema import Schema, Unfit
from feedline.tools.write.writers.contract import Summary
from feedline.tools.write.writers.tar import TarWriter, header_of, member_names, stored
from tests.tools.write.writers.outputs import samples_in, written

pytestmark = pytest.mark.sample(5)


@pytest.mark.parametrize("name", ["000000000.jpg", "a" * 100, "a" * 101, "näme.txt", "x"])
@pytest.mark.parametrize("size", [0, 1, 511, 8**11 - 1, 8**11, 1 << 40])
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


@pytest.mark.parametrize("metadata", [{}, {"classes": ["cat", "dög"]}, {"classes": ["x" * 100] * 100}])
def test_readers_skip_the_comment(tmp_path: Path, metadata: dict[str, list[str]]) -> None:
    writer = TarWriter(tmp_path / "a.tar", Schema.of([{"x": "a"}]), None)
    writer.write([[b"a"], [b""]])
    writer.finish(Summary(2, metadata=metadata))
    data = (tmp_path / "a.tar").read_bytes()
    for mode in ("r:", "r|"):
        with tarfile.open(fileobj=io.BytesIO(data), mode=mode) as archive:
            assert archive.getnames() == ["000000000.x.txt", "000000001.x.txt"]
    meta = stored(tmp_path / "a.tar")
    assert meta is not None
    assert meta["count"] == 2
    assert meta["metadata"] == (metadata if len(str(metadata)) < 300 else {})


JPG, PNG, GIF = b"\xff\xd8\xff\xe0 jpg", b"\x89PNG\r\n\x1a\n png", b"GIF89a gif"


def test_every_picture_has_the_extension_of_its_own_bytes(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"image": data, "mask": mask, "label": number}
        for number, (data, mask) in enumerate([(JPG, PNG), (PNG, PNG), (b"?", GIF), (JPG, PNG)])
    ]
    path = written("tar", tmp_path, samples)
    with tarfile.open(path) as archive:
        assert archive.getnames() == [
            *("000000000.jpg", "000000000.mask.png", "000000000.cls"),
            *("000000001.png", "000000001.mask.png", "000000001.cls"),
            *("000000002.image.bin", "000000002.mask.gif", "000000002.cls"),
            *("000000003.jpg", "000000003.mask.png", "000000003.cls"),
        ]
    assert samples_in("tar", path) == samples
    meta = stored(path)
    assert meta is not None
    assert member_names(Schema.from_json(meta["fields"])) == {
        "image": "jpg;png;image.bin",
        "mask": "mask.png;mask.gif",
        "label": "cls",
    }


def test_the_comment_has_space_for_all_extensions(tmp_path: Path) -> None:
    names = [f"field{number}" for number in range(40)]
    kinds = [JPG, PNG, GIF, b"II*\0", b"RIFF....WEBP", b"....ftypavif", b"\xff\x0a", b"?", b"BM\x10\0\0\0" + bytes(10)]
    samples = [dict.fromkeys(names, data) for data in kinds]
    path = written("tar", tmp_path, samples)
    assert samples_in("tar", path) == samples


def test_a_field_may_be_named_like_an_extension(tmp_path: Path) -> None:
    """If the picture were called png as well, one of the two would be lost."""
    samples = [{"image": PNG, "png": JPG}, {"image": JPG, "png": PNG}]
    path = written("tar", tmp_path, samples)
    assert samples_in("tar", path) == samples
    with tarfile.open(path) as archive:
        assert len(set(archive.getnames())) == 4


@pytest.mark.parametrize("value", [{"a": b"x"}, [np.zeros(2)], {"a": {1, 2}}])
def test_values_that_json_cannot_represent_are_rejected(value: Any) -> None:
    with pytest.raises(Unfit, match="JSON cannot represent") as caught:
        TarWriter.encoded(Schema.of([{"x": value}]), {"x": value})
    assert "Use lmdb" in caught.value.advice
