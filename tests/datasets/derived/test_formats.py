"""What the name or the content of a file says about its format; what is said about files that no source reads."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard

from feedline.datasets import JSONLines, open_dataset
from feedline.datasets.derived.formats import format_by_name, kind_of_file
from feedline.datasets.derived.recognition import recognise
from feedline.errors import SourceError

ROWS = [{"text": "lorem ipsum " * 60, "number": number} for number in range(300)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
PACKED: list[tuple[str, str, Callable[[bytes], bytes]]] = [
    ("gz", "gzip", gzip.compress),
    ("bz2", "bzip2", bz2.compress),
    ("xz", "xz", lzma.compress),
    ("zst", "zstd", zstandard.compress),
]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.tar", "tar"),
        ("a.tar.gz", "tar"),
        ("a.TGZ", "tar"),
        ("shard-{000..009}.tar", "tar"),
        ("s3://bucket/a.parquet", "parquet"),
        ("a.feather", "arrow"),
        ("part-*.csv.gz", "csv"),
        ("a.gz", None),
        ("photos", None),
    ],
)
def test_formats_by_name(path: str, name: str | None) -> None:
    assert format_by_name(path) == name


def message_for(path: str | Path) -> str:
    with pytest.raises(SourceError) as caught:
        open_dataset(path)
    return str(caught.value)


def test_a_pattern_without_a_known_suffix_says_what_its_first_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("0.json.gz").write_bytes(gzip.compress(LINES))
    np.save("0.npy", np.arange(3))
    Path("0.npy").rename("0.dat")
    for path, named in (
        ("*.gz", "0.json.gz: it looks like JSON lines compressed with gzip"),
        ("*.dat", "ArrayDataset reads 0.dat"),
        ("*.json", "No file"),
        ("s3://bucket/a.json.gz", "does not indicate"),
    ):
        assert named in message_for(path)


def torch_file() -> bytes:
    out = io.BytesIO()
    torch.save([1, 2], out)
    return out.getvalue()


def zip_file() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", "a")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.json", b'[{"a": 1},\n {"a": 2}]', "JSON"),
        ("a.json", json.dumps(ROWS).encode(), "JSON"),
        ("a.json", LINES, "JSON lines"),
        *((f"a.json.{ending}", pack(LINES), f"JSON lines compressed with {name}") for ending, name, pack in PACKED),
        ("a.tar", LINES, "JSON lines"),
        ("a.tar.gz", gzip.compress(LINES), "JSON lines compressed with gzip"),
        ("a.tgz", gzip.compress(b"hello\n" * 500), "lines of text compressed with gzip"),
        ("a.tar.xz", lzma.compress(b"[1, 2]"), "JSON compressed with xz"),
        ("a", b'{"a": 1}\n{"a": 2}\n', "JSON lines"),
        ("a.log", b"[2024-01-01] began\n[2024-01-02] ended\n", "lines of text"),
        ("a.md", "ä".encode() * 70_000, "lines of text"),
        ("a.md", b"x" + "ä".encode() * 70_000, "lines of text"),
        ("a.md.gz", gzip.compress(b"hello\n"), "lines of text compressed with gzip"),
        ("a.json.zst", zstandard.compress(b"[1, 2]"), "JSON compressed with zstd"),
        ("a.gz", gzip.compress(LINES)[:20], "a damaged or empty file compressed with gzip"),
        ("a.pkl", pickle.dumps([1]), "a pickle"),
        ("a.pt", torch_file(), "a file of torch.save"),
        ("a.zip", zip_file(), "a zip archive"),
        ("a.png", b"\x89PNG\r\n\x1a\n", "an image"),
        ("a.avif", b"\0\0\0 ftypavif\0\0\0\0", "an image"),
        ("a.jxl", b"\0\0\0\x0cJXL \r\n\x87\n", "an image"),
        ("a.mp4", b"\0\0\0\x20ftypisom", "a video"),
        ("a.wav", b"RIFF\0\0\0\0WAVE", "a sound"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03\0\0", "an IDX array, as in MNIST"),
        ("a.bin", bytes(range(256)), "binary data of an unknown kind"),
        ("a.xyz", b"", "an empty file"),
    ],
)
def test_kinds(tmp_path: Path, name: str, content: bytes, kind: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = kind_of_file(str(path))
    assert found.words == kind
    message = message_for(path)
    assert f"looks like {kind}. " in message or "JSON" not in kind
    assert f"looks like {kind}" in message
    if kind.startswith("JSON lines"):
        assert found.advice == "feedline.datasets.JSONLines(path) reads it, under any name."
        assert list(JSONLines(path, cache=False))
        assert "tar" not in message.replace(str(path), "")


def test_archives_are_still_recognised_under_any_name(tmp_path: Path) -> None:
    for form in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as archive:
            archive.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
        old = bytearray(out.getvalue())
        for ending, _, pack in PACKED:
            (tmp_path / f"a.{ending}").write_bytes(pack(bytes(old)))
            assert recognise(tmp_path / f"a.{ending}").format == "tar"
    header = tarfile.TarInfo("a.txt").tobuf(tarfile.USTAR_FORMAT)
    before_posix = bytearray(header[:257] + bytes(255))
    before_posix[148:156] = b" " * 8
    before_posix[148:156] = b"%06o\0 " % sum(before_posix)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(before_posix) + bytes(1024)))
    assert recognise(tmp_path / "a.gz").format == "tar"


# -- the advice in the messages works ----------------------------------------------------------------------------------
