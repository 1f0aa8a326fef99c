"""What all commands promise: exit codes, explained errors, plain text in a pipe, foreign text unchanged."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import DatasetFailed
from feedline.tools.cli.main import COMMANDS, main
from tests import program_server
from tests.tools.advise.recordings import recording_of

PROGRAM = """
import subprocess
import sys
from feedline.tools.advise import what_if
from feedline.tools.cli.main import main
from feedline.tools.measure import sweep
what_if.GRID_BATCHES = 20
sweep._COUNTED_S = 0.02  # per measurement, regardless of --seconds
sys.exit(main())
"""
TRAINING = """
import torch
from torch.utils.data import DataLoader
for batch in DataLoader(torch.arange(64), batch_size=4):
    pass
"""
FOREIGN = "[red]a:b c[é]"
"""A name with characters that mean something to shells, to addresses, or in the markup of other libraries."""
DATASETS = Path(__file__).with_name("own_datasets.py")


class FailsFirst(list[int]):
    """A dataset whose first sample raises an error with a foreign text."""

    def __getitem__(self, index: int) -> int:  # type: ignore[override]  # a list also has slices
        if index == 0:
            raise ValueError(FOREIGN)
        return index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of files with foreign names."""
    (tmp_path / FOREIGN).mkdir()
    shutil.copy(DATASETS, tmp_path / FOREIGN / "mine.py")
    np.savez(tmp_path / f"{FOREIGN}.npz", **{FOREIGN: np.zeros((9, 2))})  # type: ignore[arg-type]  # fields by name
    (tmp_path / f"{FOREIGN}.py").write_text(TRAINING)
    recording_of(40).save(tmp_path / f"{FOREIGN}.json")
    loader = feedline.Loader(FailsFirst([0, 1]), on_error="skip")
    list(loader)
    (tmp_path / f"{FOREIGN}.state").write_text(json.dumps(loader.state_dict()))
    return tmp_path


MINE = f"{FOREIGN}/mine.py:Ready"
PRINTED = [
    (["bench", MINE, "--workers", "0", "--rounds", "1", "--seconds", "20"], MINE),
    (["doctor", MINE, "--seconds", "5"], "Ready: 20 samples"),
    (["doctor", f"{FOREIGN}.json"], f"{FOREIGN}.json"),
    (["doctor", f"{FOREIGN}.state"], f"ValueError: {FOREIGN}"),
    (["inspect", f"{FOREIGN}.npz"], f"\n{FOREIGN} "),
    (["pack", f"{FOREIGN}.npz", f"{FOREIGN}.parquet", "--workers", "0"], f"{FOREIGN}.parquet: 9 samples"),
    (["profile", "-o", FOREIGN + "-p", f"{FOREIGN}.py"], f"{FOREIGN}-p.html"),
    (["report", f"{FOREIGN}.json"], f"{FOREIGN}.html"),
    (["run", f"{FOREIGN}.py"], ""),
    (["tune", MINE, "--seconds", "60"], MINE),
]


@pytest.mark.parametrize(("arguments", "text"), PRINTED, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_a_pipe_gets_plain_text_with_foreign_names_unchanged(arguments: list[str], text: str, folder: Path) -> None:
    done = program_server.run(PROGRAM, *arguments, cwd=folder)
    assert done.returncode in (0, 3, 6), done.stderr  # 3: the doctor has found something; 6: the machine is busy
    assert text in done.stdout
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout


def test_every_command_is_covered() -> None:
    assert {arguments[0] for arguments, _ in PRINTED} | {"demo", "lab"} == set(COMMANDS)


def test_the_lab_starts(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    with open(os.devnull) as nothing, os.fdopen(ours) as output:
        streams: dict[str, Any] = {"stdin": nothing.fileno(), "stdout": theirs, "stderr": theirs}
        lab = program_server.start(PROGRAM, ["lab", "--no-browser"], **streams, cwd=tmp_path)
        os.close(theirs)
        try:
            address = next(found[0] for line in output if (found := re.search(r"http://127\.0\.0\.1:\S+", line)))
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(address, timeout=60) as page:
                assert b"<html" in page.read()
            os.kill(lab.pid, signal.SIGINT)
            assert lab.wait(60) in (0, 130)
        finally:
            lab.kill()


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        *((command, f"{FOREIGN}/x.py:x") for command in ("bench", "doctor", "lab", "tune")),
        *((command, f"{FOREIGN}.json") for command in ("inspect", "pack", "profile", "report", "run")),
    ],
)
def test_a_path_that_does_not_exist_is_explained(
    command: str, missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, missing, *(["out.tar"] if command == "pack" else [])]) == 1
    captured = capsys.readouterr()
    assert re.match(rf"feedline: .*{re.escape(FOREIGN)}", captured.err)
    assert captured.out == ""


@pytest.mark.parametrize(
    ("reason", "status"), [("import", 4), ("raises", 5), ("hangs", 6), ("crashes", 7), ("empty", 8)]
)
def test_why_a_dataset_could_not_be_tried_is_the_exit_code(
    reason: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All commands that try a dataset share this."""

    def fail(_: object) -> None:
        raise DatasetFailed("It failed.", reason, "Traceback: theirs")

    for command in ("bench", "doctor", "tune"):
        monkeypatch.setattr(f"feedline.tools.cli.{command}.run", fail)
        assert main([command, "a:b"]) == status
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", "Traceback: theirs\n\nfeedline: It failed.\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "COMMAND"),
        (["nonsense"], "nonsense"),
        (["demo", "--images", "0"], "--images"),
        (["bench", "--seconds", "nan"], "nan"),
        (["bench", "a:b", "--workers", "-1"], "-1"),
        (["tune"], "required"),
        (["tune", "a:b", "--plot", "a.gif"], ".svg"),
        (["tune", "a:b", "--plot", f"{__file__}/a.svg"], "cannot be written"),
    ],
)
def test_wrong_arguments_print_the_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert "usage: feedline" in err
    assert text in err


@pytest.mark.parametrize("command", [name for name, command in COMMANDS.items() if command.packages])
def test_a_missing_package_names_the_extra_to_install(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in COMMANDS[command].packages:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            assert main([command]) == 1
        captured = capsys.readouterr()
        assert f"pip install 'feedline[{COMMANDS[command].extra}]'" in captured.err
        assert f"feedline {command}" in captured.err


def test_help_imports_no_other_package() -> None:
    done = program_server.run(
        "import sys\nfor name in ('torch', 'numpy', 'PIL'): sys.modules[name] = None\n"
        "from feedline.tools.cli.main import main\nmain(['--help'])"
    )
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"^    (\w+)  ", done.stdout, re.MULTILINE)) == set(COMMANDS)


def test_the_command_also_runs_as_a_module() -> None:
    done = program_server.run("import runpy\nrunpy.run_module('feedline', run_name='__main__')", "--version")
    assert (done.returncode, done.stdout) == (0, f"feedline {feedline.__version__}\n")


def test_a_closed_pipe_causes_no_traceback(folder: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with open(os.devnull) as nothing, (folder / "err").open("w") as err:
        inspect = program_server.start(
            PROGRAM,
            ["inspect", f"{FOREIGN}.npz"],
            stdin=nothing.fileno(),
            stdout=theirs,
            stderr=err.fileno(),
            cwd=folder,
        )
        os.close(theirs)
        assert inspect.wait(100) == 1
    assert (folder / "err").read_text() == ""
