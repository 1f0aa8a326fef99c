"""Every command prints foreign text as it is, without interpreting markup or emoji codes."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline import Loader
from feedline.tools.advise.finding import Finding
from feedline.tools.cli import doctor
from feedline.tools.cli.main import main
from feedline.tools.cli.pack import Bar
from feedline.tools.measure import rows
from feedline.tools.measure.harness import Outcome, Side
from feedline.tools.screen import Screen
from feedline.tools.write import Stage
from tests.tools.advise.recordings import recording_of
from tests.tools.test_screen import FOREIGN


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("feedline.tools.advise.what_if.GRID_BATCHES", 20)


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    main(arguments)
    captured = capsys.readouterr()
    return captured.out + captured.err


class Failing(list[int]):
    """A dataset whose first sample raises an error with this text."""

    def __init__(self, text: str) -> None:
        super().__init__([0, 1])
        self.text = text

    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            raise ValueError(self.text)
        return index


def place(name: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("text", FOREIGN)
def test_inspect_and_pack(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = place(f"{text}.npz")
    fields: dict[str, Any] = {text: np.arange(3)}
    np.savez(path, **fields)
    assert output_of(capsys, "inspect", str(path)).count(text) >= 3  # the path, the field and the line
    np.savez(path, x=np.arange(3))  # some formats of `pack` use field names in file names
    packed = output_of(capsys, "pack", str(path), f"{text}.parquet", "--workers", "0")
    assert f"{text}.parquet" in packed
    place(f"{text}.txt").write_text(text)
    assert f"{text}.txt" in output_of(capsys, "inspect", f"{text}.txt")
    assert text in output_of(capsys, "inspect", f"{text}.none")


@pytest.mark.parametrize("text", FOREIGN)
def test_recordings(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = place(f"{text}.json")
    recording_of(120).save(path)
    assert path.name in output_of(capsys, "doctor", str(path))
    assert path.stem in output_of(capsys, "report", str(path))
    for command in ("doctor", "report"):
        assert f"{text}.none" in output_of(capsys, command, f"{text}.none")


@pytest.mark.parametrize("text", FOREIGN)
def test_faults(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = place(f"{text}.json")
    loader = Loader(Failing(text), on_error="skip")
    list(loader)
    path.write_text(json.dumps(loader.state_dict()))
    printed = output_of(capsys, "doctor", str(path))
    assert path.name in printed
    assert f"ValueError: {text}" in printed


@pytest.mark.parametrize("text", FOREIGN)
def test_findings(text: str) -> None:
    out = io.StringIO()
    finding = Finding(text, text, fix=text, code=text)
    doctor.show(text, [finding], Screen(file=out), before=[text], after=[text])
    assert out.getvalue().count(text) >= 7  # title, four texts of the finding, and the lines around it


@pytest.mark.parametrize("text", FOREIGN)
def test_bench_table(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome({"data": text, "workers": 0}, Side("torch"), [{"samples_per_s": 1.0}, {"samples_per_s": 2.0}])
    rows.publish(f"feedline bench {text}", [outcome], Namespace(json=None), columns=(rows.SAMPLES,))
    printed = " ".join(capsys.readouterr().out.split())
    assert f"feedline bench {text}: median of 2 interleaved rounds [lowest..highest]" in printed
    assert printed.count(text) == 2
    assert "[1..2]" in printed


@pytest.mark.parametrize("text", FOREIGN)
def test_progress_bars(text: str) -> None:
    out = io.StringIO()
    with Bar(screen=Screen(file=out, is_terminal=True)) as bar:
        bar.show(Stage(text, 1, 10))
    assert text in out.getvalue()


@pytest.mark.parametrize("text", FOREIGN)
@pytest.mark.parametrize("command", ["bench", "tune", "doctor", "profile", "run"])
def test_names_that_do_not_exist(command: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert text in output_of(capsys, command, f"nowhere_{text}:x" if command in ("bench", "tune") else f"{text}.py")
