"""Every command prints plain text, if it does not print to a terminal."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from feedline.tools.cli.main import COMMANDS as ALL
from tests import program_server
from tests.tools.advise.recordings import recording_of

OWN = Path(__file__).parent / "own_datasets.py"
PROGRAM = """
import sys
from feedline.tools.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""
TRAINING = """
import torch
from torch.utils.data import DataLoader
for batch in DataLoader(torch.arange(64), batch_size=4):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.zeros((9, 2)))
    (tmp_path / "train.py").write_text(TRAINING)
    recording_of(40).save(tmp_path / "run.json")
    return tmp_path


COMMANDS = {
    "bench": (["bench", f"{OWN}:Ready", "--workers", "0", "--rounds", "1", "--seconds", "20"], "samples/s"),
    "doctor": (["doctor"], "This machine\nwhat "),
    "doctor of a dataset": (["doctor", f"{OWN}:Ready", "--seconds", "5"], "\n"),
    "doctor of a recording": (["doctor", "run.json"], "what "),
    "inspect": (["inspect", "a.npy"], "samples   9\n"),
    "pack": (["pack", "a.npy", "b.npy", "--format", "npy", "--workers", "0"], "9 samples"),
    "profile": (["profile", "-o", "out", "train.py"], "out.html"),
    "report": (["report", "run.json"], "run.html"),
    "run": (["run", "train.py"], ""),
    "tune": (["tune", f"{OWN}:Ready", "--seconds", "5"], "loader = DataLoader("),
}


SHORT_PREDICTIONS = "from feedline.tools.advise import what_if\nwhat_if.GRID_BATCHES = 20\n"
SHORT = dict.fromkeys(("profile", "report"), SHORT_PREDICTIONS)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_print_plain_text(name: str, folder: Path) -> None:
    arguments, expected = COMMANDS[name]
    done = program_server.run(SHORT.get(name, "") + PROGRAM, *arguments, cwd=folder)
    assert done.returncode in (0, 3), done.stderr
    assert expected in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout


def test_the_lab_starts(folder: Path) -> None:
    ours, theirs = os.pipe()
    with open(os.devnull) as nothing, os.fdopen(ours) as output:
        lab = program_server.start(
            PROGRAM, ["lab", "--no-browser"], stdin=nothing.fileno(), stdout=theirs, stderr=theirs, cwd=folder
        )
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


def test_a_closed_pipe_causes_no_traceback(folder: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with open(os.devnull) as nothing, (folder / "err").open("w") as err:
        inspect = program_server.start(
            PROGRAM, ["inspect", "a.npy"], stdin=nothing.fileno(), stdout=theirs, stderr=err.fileno(), cwd=folder
        )
        os.close(theirs)
        assert inspect.wait(100) == 1
    assert (folder / "err").read_text() == ""


def test_every_command_is_covered() -> None:
    assert {arguments[0] for arguments, _ in COMMANDS.values()} | {"demo", "lab"} == set(ALL)
