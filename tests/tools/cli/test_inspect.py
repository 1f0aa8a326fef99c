from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image

import feedline
from feedline.tools.cli.main import main
from tests.tools.write.stores import FORMATS, SINGLE, Mixed


def inspect(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> dict[str, Any]:
    capsys.readouterr()
    status = main(["inspect", str(path), "--json", *options])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    details: dict[str, Any] = json.loads(captured.out)
    return details


def types(details: dict[str, Any]) -> dict[str, str]:
    return {field["name"]: field["type"] for field in details["fields"]}


def jpeg(number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((20, 30, 3), number * 20, np.uint8)).save(out, "JPEG")
    return out.getvalue()


@pytest.mark.parametrize("format_", FORMATS)
def test_describes_and_verifies_what_pack_wrote_and_rejects_files_that_are_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format_: str
) -> None:
    packed = feedline.pack(Mixed(50), tmp_path / SINGLE[format_], format=format_, workers=0)
    details = inspect(capsys, packed.path, "--verify")
    assert (details["samples"], details["verified"], details["looked at"]) == (50, 50, 50)
    assert (details["format"], details["form"]) == (format_, "map-style")
    assert types(details) == {
        "image": "uint8 arrays of shape (6, 5, 3)",
        "vector": "float32 arrays of shape (4,)",
        "label": "int64 numbers",
        "name": "strings",
    }
    assert details["line"].split("(")[1:] == packed.line.split("(")[1:]
    path = packed.path / "image.npy" if packed.path.is_dir() else packed.path
    whole = path.read_bytes()
    for size in (0, 100, len(whole) // 2):
        path.write_bytes(whole[:size])
        status = main(["inspect", str(packed.path), "--json", "--verify"])
        captured = capsys.readouterr()
        assert status == 1, f"{size} bytes of {len(whole)} were accepted as complete: {captured.out}"
        assert "Traceback" not in captured.err


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as store:
        store.create_dataset("group/images", data=np.zeros((30, 8, 8), np.uint8), chunks=(5, 8, 8), compression="gzip")
        store["labels"] = np.arange(30)


def database(path: Path) -> None:
    with lmdb.open(str(path)) as env, env.begin(write=True) as txn:
        for number in range(10):
            txn.put(b"key-%d" % number, jpeg(number))


TABLE = pa.table({"x": [1.5, 2.5, None], "text": ["a", "b", "c"], "list": [[1], [], [2, 3]], "raw": [jpeg(1)] * 3})
COLUMNS = {
    "x": "float64 numbers or None",
    "text": "strings",
    "list": "int64 arrays of different shapes (1-dimensional)",
    "raw": "jpg",
}


@pytest.mark.parametrize(
    ("name", "make", "count", "columns"),
    [
        ("a.hdf5", hdf5, 30, {"group/images": "uint8 arrays of shape (8, 8)", "labels": "int64 numbers"}),
        ("folder", database, 10, {"value": "jpg"}),
        ("a.parquet", lambda path: pq.write_table(TABLE, path, row_group_size=2), 3, COLUMNS),
    ],
)
def test_stores_that_pack_did_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, make: Any, count: int, columns: dict[str, str]
) -> None:
    make(tmp_path / name)
    details = inspect(capsys, tmp_path / name, "--verify")
    assert (details["samples"], details["verified"], types(details)) == (count, count, columns)


@pytest.mark.parametrize("ending", [".tar", ".tar.zst"])
def test_tar_files_that_pack_did_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in range(5):
            for field, data in {"jpg": jpeg(number), "cls": b"%d" % number, "json": b'{"a": 1}'}.items():
                info = tarfile.TarInfo(f"some/where.d/{number:04d}.{field}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    data = out.getvalue()
    path = tmp_path / f"foreign{ending}"
    path.write_bytes(zstandard.ZstdCompressor().compress(data) if ending.endswith("zst") else data)
    details = inspect(capsys, path)
    assert (details["form"], details["samples"]) == (("map-style", 5) if ending == ".tar" else ("stream", None))
    assert types(details) == {
        "__key__": "strings",
        "__url__": "strings",
        "jpg": "jpg",
        "cls": "int64 numbers",
        "json": "lists, dicts or values of different kinds",
    }
    assert ("shuffle" in details["line"]) == (ending == ".tar")
    assert inspect(capsys, path, "--verify")["samples"] == 5


EVIL = "\x1b]0;title\x07\x1b[2J\x9b1m\r\u202e"
"""Control codes: set the terminal's title, clear it, start a colour, return the cursor, reverse the text direction."""


def evil_stores(folder: Path) -> list[Path]:
    name = f"a{EVIL}b"
    (folder / name).mkdir()
    paths = [folder / f"{name}.tar", folder / f"{name}.h5", folder / name, folder / "a.tar", folder / f"{name}.none"]
    (folder / name / f"{name}.txt").write_text(name)
    for path in (paths[0], paths[3]):
        with tarfile.open(path, "w") as tar:
            info = tarfile.TarInfo(f"{name}.{name}")
            info.size = 5
            tar.addfile(info, io.BytesIO(b"12345"))
    with h5py.File(paths[1], "w") as file:
        file[name] = [name, name]
        file.attrs[name] = name
    return paths


@pytest.mark.parametrize("number", [0, 1, 2, 4])
def test_names_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path, number: int) -> None:
    path = evil_stores(tmp_path)[number]
    for command in (["inspect", str(path)], ["pack", str(path), str(tmp_path / "out" / "x.h5")]):
        main(command)
        captured = capsys.readouterr()
        assert (captured.out + captured.err).strip()
        assert not [sign for sign in captured.out + captured.err if not sign.isprintable() and sign != "\n"]
