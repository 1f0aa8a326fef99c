"""`feedline lab` as a program: what it prints, and that it leaves nothing behind, however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedline.tools.cli.main import main
from feedline.tools.lab.server import HEADER
from tests.conftest import _children
from tests.tools.lab.served import client, has_ended


def descendants_of(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        found += _children(each)
    return found[1:]


PROBED = """
import signal

class Dataset:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        with open({pipe!r}, "w") as pipe:
            pipe.write("probed")
        signal.pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "view", "least"),  # the fork server and the run, and its workers or the process that probes a dataset
    [(signal.SIGINT, "faults", 4), (signal.SIGKILL, "your_dataset", 3)],
)
def test_a_stopped_lab_leaves_no_process_behind(number: signal.Signals, view: str, least: int, tmp_path: Path) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "probed.py"
    os.mkfifo(pipe)
    file.write_text(PROBED.format(pipe=str(pipe)))
    values = {"source": f"{file}:Dataset"} if view == "your_dataset" else {}
    command = [sys.executable, "-m", "feedline", "lab", "--no-browser", "my_module:dataset"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        assert lab.stderr is not None
        printed = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=([\w-]+)(#.*)", lab.stdout.readline())
        assert printed is not None
        assert printed[3] == "#your_dataset?source=my_module%3Adataset"
        with (
            client(printed[1], **{HEADER: printed[2]}) as asking,
            asking.stream("POST", "/runs", json={"view": view, "values": values}) as answer,
        ):
            lines = answer.iter_lines()
            if values:
                assert pipe.read_text() == "probed"
            else:
                assert any(json.loads(line)["kind"] == "cells" for line in lines)  # then there are workers
            started = descendants_of(lab.pid)
            os.kill(lab.pid, number)
            lab.wait(60)
        assert len(started) >= least
        assert all(map(has_ended, started))
        assert "Traceback" not in lab.stderr.read()


def test_a_dataset_cannot_be_exported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["lab", "my_module:dataset", "--export", str(tmp_path / "lab.html")]) != 0
    assert "Leave out the dataset or --export" in capsys.readouterr().err
