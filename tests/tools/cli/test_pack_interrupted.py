from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.write.stores import read

POINTS = """
import os, threading
class Points:
    def __len__(self):
        return 200
    def __getitem__(self, index):
        if index == int(os.environ.get("STOP_AT", -1)):
            open("reached", "w").close()
            threading.Event().wait()  # for the signal
        return {"index": index}
points = Points()
"""


def start(folder: Path, *options: str, stop_at: int) -> subprocess.Popen[str]:
    """Start the command in a process group of its own, as a shell does."""
    (folder / "points.py").write_text(POINTS)
    program = "import sys; from feedline.tools.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "pack", "points:points", "out"]
    command += ["--format", "tar", "--samples-per-shard", "16"]
    return subprocess.Popen(
        [*command, *options],
        cwd=folder,
        env={**os.environ, "STOP_AT": str(stop_at)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "whole_group", "stop_at"),
    [pytest.param("2", True, 150, id="terminal"), pytest.param("0", False, 3, id="at once, no workers")],
)
def test_ctrl_c_stops_packing_and_the_same_command_resumes_it(
    tmp_path: Path, workers: str, whole_group: bool, stop_at: int
) -> None:
    """A real signal to real processes: one line, status 130, no process left; then the same command again."""
    process = start(tmp_path, "--workers", workers, stop_at=stop_at)
    while not (tmp_path / "reached").exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None, process.communicate()
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=100)  # does not wait for the blocked sample
    assert process.returncode == 130, errors
    assert output == ""
    is_kept = stop_at > 100
    (line,) = [line for line in errors.splitlines() if line.startswith("feedline: ")]
    assert ("resume" if is_kept else "start over") in line
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # workers are gone
    assert (tmp_path / "out.packing").exists() == is_kept
    assert not (tmp_path / "out").exists()
    second = start(tmp_path, "--workers", workers, stop_at=-1)
    output, errors = second.communicate(timeout=100)
    assert second.returncode == 0, errors
    assert ("were written by the interrupted run" in output) == is_kept
    assert [sample["index"] for sample in read(tmp_path / "out")] == list(range(200))
