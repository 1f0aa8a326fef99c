"""`feedline lab` as a program: what it prints, and that nothing of it stays, however it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feedline.cli.main import main
from feedline.lab.guard import HEADER
from tests.conftest import _children
from tests.lab.served import client


def below(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        found += _children(each)
    return found[1:]


def gone(pids: list[int], within_s: float) -> bool:
    until = time.monotonic() + within_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "view", "least"),  # the fork server and the run, and its workers or what probes a dataset
    [(signal.SIGINT, "faults", 4), (signal.SIGKILL, "faults", 4), (signal.SIGKILL, "your_dataset", 3)],
)
def test_nothing_of_a_lab_that_was_stopped_stays(number: signal.Signals, view: str, least: int) -> None:
    command = [sys.executable, "-m", "feedline", "lab", "--no-browser", "my_module:dataset"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        assert lab.stderr is not None
        said = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=([\w-]+)(#.*)", lab.stdout.readline())
        assert said is not None
        assert said[3] == "#your_dataset?source=my_module%3Adataset"
        with (
            client(said[1], **{HEADER: said[2]}) as asking,
            asking.stream("POST", "/runs", json={"view": view}) as answer,
        ):
            told = answer.iter_lines()  # left unread: the run goes on while there is room for its events
            next(told)
            until = time.monotonic() + 30
            while len(started := below(lab.pid)) < least and time.monotonic() < until:
                time.sleep(0.05)
            began = time.monotonic()
            os.kill(lab.pid, number)
            lab.wait(30)
        assert len(started) >= least
        assert gone(started, 10)
        assert time.monotonic() - began < 15
        assert "Traceback" not in lab.stderr.read()


def test_a_dataset_cannot_be_exported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["lab", "my_module:dataset", "--export", str(tmp_path / "lab.html")]) != 0
    assert "Leave out the dataset, or --export" in capsys.readouterr().err
