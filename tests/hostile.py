"""Runs `make test` on a machine that works against it: `make test-hostile`, or `python -m tests.hostile --runs 2`.

Two endless loops compete for the cores. At random moments, all processes of the run are stopped for a second and
continued, as on a laptop that sleeps or a virtual machine whose host is busy. Every second run has a low priority and
ignores SIGINT, like a job in the background. The suite has to pass each time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

_BUSY_LOOPS = 2
_PAUSE_S = (4.0, 20.0)
_STOP_S = 1.0


def main() -> int:
    """Run the command as often as asked, and report each run in a line."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--log", type=Path, default=Path("hostile.log"), help="where the output of all runs goes")
    parser.add_argument("command", nargs="*", default=["make", "test"])
    options = parser.parse_args()
    failed = 0
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(_BUSY_LOOPS)]
    try:
        with options.log.open("wb") as log:
            for number in range(options.runs):
                began_s, in_background = time.monotonic(), number % 2 == 1
                code = _run(options.command, log, in_background=in_background)
                failed += code != 0
                where = "background" if in_background else "foreground"
                minutes = (time.monotonic() - began_s) / 60
                sys.stdout.write(f"run {number + 1}, in the {where}: exit code {code} after {minutes:.1f} minutes\n")
                sys.stdout.flush()
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    if failed:
        sys.stdout.write(f"{failed} of {options.runs} runs failed. {options.log} has their output.\n")
    return min(failed, 1)


def _run(command: list[str], log: IO[bytes], *, in_background: bool) -> int:
    """Run the command and stop its processes at random; return its exit code."""

    def prepare() -> None:
        if in_background:
            os.nice(10)
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=prepare
    )
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(random.uniform(*_PAUSE_S))
            # Except for those that a test has stopped itself.
            stopped = [pid for pid, state in _family(process.pid) if state not in "TtZ"]
            _signal(stopped, signal.SIGSTOP)
            time.sleep(_STOP_S)
            _signal(stopped, signal.SIGCONT)
    finally:
        if process.poll() is None:
            _signal([pid for pid, _ in _family(process.pid)], signal.SIGKILL)
            process.wait()


def _family(root: int) -> list[tuple[int, str]]:
    """Return a process and its descendants, each with its state."""
    parents: dict[int, tuple[int, str]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            state, parent = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:2]
            parents[int(name)] = int(parent), state
    found = {root}
    while more := {pid for pid, (parent, _) in parents.items() if parent in found} - found:
        found |= more
    return [(pid, parents[pid][1]) for pid in found & parents.keys()]


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
