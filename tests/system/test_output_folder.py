"""Folders of outputs: made before the work, by every command that writes a file."""

from __future__ import annotations

from pathlib import Path

import pytest

import feedline
from feedline.tools.cli.main import main
from feedline.tools.cli.values import picture


def test_recordings_pages_traces_and_plots_go_into_new_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    loader = feedline.Loader(list(range(8)), 2)
    with feedline.record(loader, "runs/one/run.json"):
        list(loader)
    assert main(["report", "runs/one/run.json", "-o", "pages/one/run.html", "--trace", "traces/run.json"]) == 0
    assert Path("pages/one/run.html").is_file()
    assert Path("traces/run.json").is_file()
    assert picture("plots/one/a.svg").parent.is_dir()
    program = Path("program.py")
    program.write_text("import torch\nfor _ in torch.utils.data.DataLoader(list(range(8))): pass\n")
    assert main(["profile", "-o", "profiles/one/x", str(program)]) == 0
    assert sorted(path.name for path in Path("profiles/one").iterdir()) == ["x.html", "x.json.gz"]
    assert capsys.readouterr().err == ""
