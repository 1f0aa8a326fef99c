from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.own_module import own_module
from tests.tools.cli.packing import fails, run
from tests.tools.write.stores import FORMATS, SINGLE, canonical, read, without_workers

MODULE = """
import numpy as np

class Points:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return {"x": np.full(3, index, np.float32), "name": f"point {index}"}

points = Points()

def make():
    return Points()

class stream:
    def __iter__(self):
        return map(points.__getitem__, range(40))

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return own_module(tmp_path, monkeypatch, MODULE)


def test_repacks_from_one_format_to_another(tmp_path: Path, module: str) -> None:
    run(f"{module}:make", tmp_path / "0.parquet")
    source = tmp_path / "0.parquet"
    for number, format_ in enumerate(FORMATS):
        out = tmp_path / f"{number}-{SINGLE[format_]}"
        run(source, out, "--format", format_, "--fields", "x,name")
        assert canonical(read(out)) == canonical(read(tmp_path / "0.parquet"))
        source = out


def test_the_summary_ends_with_a_line_that_loads_the_output(
    tmp_path: Path, module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(f"{module}:points", tmp_path / "a.h5")
    captured = capsys.readouterr()
    assert "40 samples" in captured.out
    assert "all were read back" in captured.out
    line = captured.out.strip().splitlines()[-1].strip()
    names: dict[str, Any] = {}
    exec(f"import feedline, feedline.datasets\n{without_workers(line)}", names)
    assert sum(len(batch["name"]) for batch in names["loader"]) == 40
    names["loader"].dataset.close()
    assert captured.err == ""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no_module_of_mine:x", "no module 'no_module_of_mine'"),
        ("{module}:nothing", "has no 'nothing'"),
        ("{module}:number", "is 3, of type int, which is not a dataset"),
        ("{module}.py", "looks like lines of text"),
        ("empty", "no files"),
    ],
)
def test_rejects_sources_that_cannot_be_packed(
    tmp_path: Path, module: str, capsys: pytest.CaptureFixture[str], source: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    assert message in fails(capsys, source.format(module=module), tmp_path / "a.lmdb")
    assert not (tmp_path / "a.lmdb").exists()


def test_a_broken_picture_is_named_or_skipped(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = pictures / "cat" / "01.png"
    broken.write_bytes(broken.read_bytes()[:200])
    assert "cat/01.png" in fails(capsys, pictures, tmp_path / "a.lmdb", "--resize", "8")
    (pictures / "dög" / "00.jpg").write_bytes(b"not at all")
    run(pictures, tmp_path / "a.lmdb", "--resize", "8", "--on-error", "skip", "--restart")
    captured = capsys.readouterr()
    assert "2 samples were left out:" in captured.out
    assert re.search(r"  sample 0 \(.*cat/01.png\): a picture \(png, 200 bytes\) cannot be decoded", captured.out)
    assert captured.err == ""
    assert len(read(tmp_path / "a.lmdb")) == 10


@pytest.mark.parametrize(("package", "out", "extra"), [("h5py", "a.h5", "hdf5"), ("pyarrow", "a.parquet", "parquet")])
def test_a_missing_library_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    module: str,
    package: str,
    out: str,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert f"pip install 'feedline[{extra}]'" in fails(capsys, f"{module}:points", tmp_path / out)
