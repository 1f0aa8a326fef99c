from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from feedline import Loader
from feedline.cli.doctor import show
from feedline.cli.findings import Finding
from feedline.cli.main import main


def draw(*findings: Finding, lines: tuple[str, ...] = ()) -> str:
    out = io.StringIO()
    show("This machine", findings, lines, Console(file=out, width=80))
    return out.getvalue()


def test_the_table_fits_a_narrow_terminal_and_cuts_nothing() -> None:
    text = draw(Finding("cores", "found " * 30, "change " * 30), Finding("torch", "2.13"))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("found") == 31
    assert text.count("change") == 31


def test_nothing_to_change_is_said() -> None:
    assert "nothing" in draw(Finding("torch", "2.13"))


def test_what_was_found_is_not_taken_for_markup() -> None:
    text = draw(Finding("[red]x[/red]", "[bold]y"), lines=("[/z] w",))
    assert "[red]x[/red]" in text
    assert "[bold]y" in text
    assert "[/z] w" in text


def test_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for subject in ("cores", "memory", "open files", "process engine", "torch"):
        assert subject in out


def test_the_machine_for_programs_needs_no_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("rich", "PIL", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["machine"]["torch"] is None
    assert {"subject", "found", "advice"} == set(told["findings"][0])


def test_a_table_without_the_package_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["doctor"]) == 1
    told = capsys.readouterr().err
    assert "pip install 'feedline[demo]'" in told
    assert "--json" in told


def saved(folder: Path) -> Path:
    loader = Loader({7: "seven"}, 1, sampler=[7, 8], on_error="skip")
    assert list(loader) == [["seven"]]
    path = folder / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    return path


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(saved(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert "Faults in state.json" in out
    assert "KeyError" in out
    assert "sample 8: KeyError: 8" in out
    assert "cores" not in out


def test_a_file_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", str(saved(tmp_path))]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["faults"]["lost"] == [8]
    assert told["findings"][0] == {"subject": "state", "found": "at the end of epoch 0", "advice": None}


def test_a_file_that_is_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\x03\x04rest")
    assert main(["doctor", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"feedline: {path} is a pickle")
