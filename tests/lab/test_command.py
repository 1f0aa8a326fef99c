"""`feedline lab` as a program: what it prints, and that nothing of it stays, however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from feedline.cli.main import main
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_a_lab_that_was_stopped_stays(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "feedline", "lab", "--no-browser", "my_module:dataset"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        assert lab.stderr is not None
        said = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=([\w-]+)(#.*)", lab.stdout.readline())
        assert said is not None
        assert said[3] == "#your_dataset?source=my_module%3Adataset"
        asked = {"view": "faults", "values": {"happens": "nothing"}}
        with client(said[1], **{"x-feedline-token": said[2]}) as asking:
            try:
                with asking.stream("POST", "/runs", json=asked) as answer:
                    for line in answer.iter_lines():
                        if json.loads(line).get("values", {}).get("batches", 0) > 3:
                            started = below(lab.pid)
                            os.kill(lab.pid, number)
                            break
                    began = time.monotonic()
            except httpx.HTTPError:  # it has gone already
                pass
        lab.wait(30)
        assert gone(started, 10)
        assert time.monotonic() - began < 15
        assert len(started) >= 4  # fork server, run, workers
        assert "Traceback" not in lab.stderr.read()


def test_a_dataset_cannot_be_exported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["lab", "my_module:dataset", "--export", str(tmp_path / "lab.html")]) != 0
    assert "Leave out the dataset, or --export" in capsys.readouterr().err
