"""Runs `make test` on a machine that works against it: `make test-hostile`, or `python -m tests.hostile --runs 2`.

Two endless loops compete for the cores. At random moments, all processes of the run are stopped for a second and
continued, as on a laptop that sleeps or a virtual machine whose host is busy. Every second run has a low priority and
ignores SIGINT, like a job in the background. The suite has to pass each time: no test may depend on how fast its
machine is.
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
from collections.abc import Iterator
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
    arguments = parser.parse_args()
    failed = 0
    with arguments.log.open("wb") as log, _busy_loops():
        for number in range(arguments.runs):
            in_background = number % 2 == 1
            began_s, seed = time.monotonic(), random.SystemRandom().randrange(1 << 32)
            code, stops = _run(arguments.command, log, random.Random(seed), in_background=in_background)
            failed += code != 0
            how = "in the background, nice 10" if in_background else "in the foreground"
            minutes = (time.monotonic() - began_s) / 60
            sys.stdout.write(
                f"run {number + 1} of {arguments.runs}, {how}: exit code {code} after {minutes:.1f} minutes, "
                f"stopped {stops} times\n"
            )
            sys.stdout.flush()
    if failed:
        sys.stdout.write(f"{failed} of {arguments.runs} runs failed. {arguments.log} has their output.\n")
    return min(failed, 1)


@contextlib.contextmanager
def _busy_loops() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(_BUSY_LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _run(command: list[str], log: IO[bytes], draw: random.Random, *, in_background: bool) -> tuple[int, int]:
    """Run the command and stop its processes at random; return its exit code and the number of stops."""

    def prepare() -> None:
        if in_background:
            os.nice(10)
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=prepare
    )
    stops = 0
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(draw.uniform(*_PAUSE_S)), stops
            stopped = _stop(process.pid)
            time.sleep(_STOP_S)
            for pid in stopped:
                _signal(pid, signal.SIGCONT)
            stops += 1
    finally:
        if process.poll() is None:
            for pid in _descendants(process.pid):
                _signal(pid, signal.SIGKILL)
            process.wait()


def _stop(root: int) -> list[int]:
    """Stop a process and its descendants, except for those that a test has stopped itself."""
    running = [pid for pid in _descendants(root) if _state(pid) not in ("T", "t", "Z", "")]
    for pid in running:
        _signal(pid, signal.SIGSTOP)
    return running


def _descendants(root: int) -> list[int]:
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):  # it has ended in the meantime
                    waiting += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
