"""The webdataset package itself: both read what the other writes, with the same results."""

from __future__ import annotations

import contextlib
import gc
import io
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feedline.datasets import TarDataset
from feedline.errors import BadOption, CorruptSource
from feedline.images.pillow import EXTENSIONS, SPECS
from feedline.testing.asserting import assert_same
from tests.datasets.formats.tar.writing import tar_bytes
from tests.sampling import examples

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # which the package leaves
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Close the files that the package has left open, before they count as leaks."""
    yield
    gc.collect()


# Any, throughout: samples of any kind.
def theirs(path: str | list[str], *decoders: Any) -> list[dict[str, Any]]:
    """Read shards with the package, and decode them if decoders are given."""
    pipeline = webdataset.WebDataset(path, shardshuffle=False, empty_check=False)
    if decoders:
        pipeline = pipeline.decode(*(one for one in decoders if one is not True))
    samples = list(pipeline)
    for sample in samples:
        sample.pop("__local_path__", None)  # the place of its own cache
    return samples


def ours(path: str | list[str], **options: Any) -> list[dict[str, Any]]:
    samples = list(TarDataset(path, **options).stream())
    table = TarDataset(path, cache=False, **options)
    compare(table.__getitems__(range(len(table))), samples)
    table.close()
    return samples


def compare(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert sorted(one) == sorted(other)
        for name in other:
            if isinstance(other[name], torch.Tensor):
                assert one[name].dtype == other[name].dtype
                assert torch.equal(one[name], other[name])
            elif isinstance(other[name], Image.Image):
                assert one[name].mode == other[name].mode
                assert one[name].tobytes() == other[name].tobytes()
            else:
                assert_same(one[name], other[name])


names = st.text(st.sampled_from(list("ab..A/_")), min_size=1, max_size=8) | st.sampled_from(
    [
        "a.__key__",
        "a.__url__",
        "a.__bad__",
        "__m__",
        "__m__/a.b",
        "../../x.txt",
        "a.txt",
        "a.TXT",
        "b.txt",
        "b.cls",
        ".h.x",
    ]
)


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(st.tuples(names, st.binary(max_size=20)), max_size=9))
def test_files_with_odd_names_make_the_same_samples(files: list[tuple[str, bytes]]) -> None:
    files = [(name, content) for name, content in files if not name.endswith("/")]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.tar"
        Path(path).write_bytes(tar_bytes(files))
        expected: list[Any] | None = None
        with contextlib.suppress(ValueError):  # a duplicate
            expected = theirs(path)
        if expected is None:
            with pytest.raises(CorruptSource, match="twice"):
                list(TarDataset(path, decode=False, unique_keys=False).stream())
            with pytest.raises(CorruptSource, match="twice"):
                len(TarDataset(path, cache=False, decode=False, unique_keys=False))
        else:
            compare(ours(path, decode=False, unique_keys=False), expected)


def every_kind() -> dict[str, Any]:
    file = io.BytesIO()
    np.save(file, np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    return {
        "__key__": "some/0001",
        "txt": "hello",
        "text": "text",
        "transcript": "said",
        "cls": 3,
        "cls2": 4,
        "index": 5,
        "inx": 6,
        "id": -7,
        "json": {"a": [1, 2.5, None, "ä"]},
        "null.json": None,
        "jsn": [1],
        "npy": np.arange(6, dtype=np.int16).reshape(2, 3),
        "fortran.npy": file.getvalue(),
        "scalar.npy": np.array(3.5),
        "empty.npy": np.zeros((0, 3), np.float32),
        "text.npy": np.array(["a", "bcd"]),
        "npz": {"a": np.arange(3), "b": np.eye(2)},
        "ten": [np.arange(4, dtype=np.int32), np.eye(3, dtype=np.float16)],
        "mp": {"a": 1},
        "pth": torch.arange(3),
        "bin": b"\0\1\2",
        "seg.txt": "second",
        "txt.gz": "packed",
        "cls.gz": 9,
        "bin.gz": b"stays",
    }


def test_every_kind_of_field_that_the_package_writes(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tar")
    with webdataset.TarWriter(path) as writer:
        writer.write(every_kind())
    expected = theirs(path, True)
    for sample in expected:
        sample["ten"] = [array.copy() for array in sample["ten"]]
    found = ours(path)
    compare(found, expected)
    assert found[0]["npy"].flags.writeable
    assert found[0]["null.json"] == b"null"  # the package treats None as "not decoded"


def test_pickles_are_rejected_by_default(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tar")
    with webdataset.TarWriter(path) as writer:
        writer.write({"__key__": "a", "pyd": {1, 2}, "pickle": (3,), "txt": "x"})
    for name in ("pyd", "pickle"):
        with pytest.raises(BadOption, match=r"pickle.*pickle=True.*fields=.*decode=False"):
            list(TarDataset(path, fields=name).stream())
    assert list(TarDataset(path, fields="txt").stream()) == ["x"]
    assert pickle.loads(next(iter(TarDataset(path, fields="pyd", decode=False).stream()))) == {1, 2}
    compare(ours(path, pickle=True), theirs(path, True))


def test_rejects_a_pth_field_with_more_than_tensors(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tar")
    with webdataset.TarWriter(path) as writer:
        writer.write({"__key__": "a", "pth": Path("x")})
    with pytest.raises(CorruptSource, match=r"field 'pth' of sample 'a' cannot be decoded"):
        list(TarDataset(path).stream())
    assert next(iter(TarDataset(path, pickle=True).stream()))["pth"] == Path("x")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    path = str(tmp_path_factory.mktemp("images") / "a.tar")
    with webdataset.TarWriter(path) as writer:
        for number, (mode, kind) in enumerate(
            [("RGB", "jpg"), ("L", "jpg"), ("RGBA", "png"), ("RGB", "png"), ("L", "png"), ("P", "png"), ("1", "png")]
        ):
            image = Image.fromarray(rng.integers(0, 255, (9, 7, 4), dtype=np.uint8), "RGBA").convert(mode)
            buffer = io.BytesIO()
            image.save(buffer, "JPEG" if kind == "jpg" else "PNG")
            writer.write({"__key__": str(number), kind: buffer.getvalue(), "cls": number})
    return path


@pytest.mark.parametrize("spec", sorted(SPECS))
@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
def test_images_are_decoded_alike(images: str, spec: str) -> None:
    compare(ours(images, decode=spec), theirs(images, spec))


def test_images_of_16_bits_are_white_only_in_the_package(tmp_path: Path) -> None:
    """docs/sources/tar.md says so; if the package scales them one day, feedline should too."""
    buffer = io.BytesIO()
    Image.fromarray(np.array([[0, 300, 32768, 65535]], np.uint16)).save(buffer, "PNG")
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.png", buffer.getvalue())]))
    assert theirs(str(path), "l8")[0]["png"].tolist() == [[0, 255, 255, 255]]
    assert ours(str(path), decode="l8")[0]["png"].tolist() == [[0, 1, 128, 255]]


def test_suffixes_and_image_formats_equal_those_of_the_package() -> None:
    from webdataset import autodecode

    assert {*autodecode.IMAGE_EXTENSIONS, "avif", "jxl"} == EXTENSIONS
    assert set(autodecode.imagespecs) == set(SPECS)
    for name, (kind, values, mode) in autodecode.imagespecs.items():
        assert SPECS[name] == (kind, values == "float", mode)


def test_functions_come_before_names_and_after_gz(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tar")
    with webdataset.TarWriter(path) as writer:
        writer.write({"__key__": "a", "txt": "hello", "txt.gz": "packed", "cls": 5})
    seen: list[tuple[str, bytes]] = []

    def handler(name: str, data: bytes) -> Any:
        seen.append((name, data))
        return len(data) if name.endswith("txt") else None

    compare(ours(path, decode=handler), theirs(path, handler))
    assert (".txt", b"packed") in seen


@pytest.mark.parametrize(
    ("version", "is_safe"), [("2.5.1+cpu", False), ("2.9.0", False), ("2.10.0a0", True), ("3.0", True)]
)
def test_a_pth_field_is_read_by_default_only_by_torch_versions_that_load_it_safely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_safe: bool
) -> None:
    path = str(tmp_path / "a.tar")
    with webdataset.TarWriter(path) as writer:
        writer.write({"__key__": "a", "pth": torch.arange(3)})
    monkeypatch.setattr(torch, "__version__", version)
    if not is_safe:
        with pytest.raises(BadOption, match=r"before version 2\.10.*pickle=True"):
            list(TarDataset(path).stream())
    (sample,) = TarDataset(path, pickle=not is_safe).stream()
    assert sample["pth"].tolist() == [0, 1, 2]
