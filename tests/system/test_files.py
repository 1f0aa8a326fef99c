"""Files that feedline writes, and their folders, which every command makes before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import feedline
from feedline.system.files import drop_abandoned
from feedline.tools.cli.main import main
from feedline.tools.cli.options import picture


def test_only_files_that_killed_writers_left_are_dropped(tmp_path: Path) -> None:
    left, recent, other = ".a.lines.0123456789abcdef.part", ".a.lines.0123456789abcdee.part", ".b.0123456789abcdef.part"
    mine = [".a.part", ".a", "a", ".a.0123.part", ".a.lines.0123456789abcdef.part.txt"]
    for name in (left, recent, other, *mine):
        (tmp_path / name).touch()
        if name != recent:
            os.utime(tmp_path / name, (1, 1))
    drop_abandoned(tmp_path, "a")
    assert sorted(os.listdir(tmp_path)) == sorted([recent, other, *mine])


def test_recordings_pages_and_plots_go_into_new_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    loader = feedline.Loader(list(range(8)), 2)
    with feedline.record(loader, "runs/one/run.json"):
        list(loader)
    assert main(["report", "runs/one/run.json", "-o", "pages/one/run.html"]) == 0
    assert Path("pages/one/run.html").is_file()
    assert picture("plots/one/a.svg").parent.is_dir()
    program = Path("program.py")
    program.write_text("import torch\nfor _ in torch.utils.data.DataLoader(list(range(8))): pass\n")
    assert main(["profile", "-o", "profiles/one/x", str(program)]) == 0
    assert sorted(path.name for path in Path("profiles/one").iterdir()) == ["x.html", "x.json.gz"]
    assert capsys.readouterr().err == ""
