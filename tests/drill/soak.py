"""Runs rounds in a separate process until the time is over, and starts another when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.drill.summary import Summary

ROOT = Path(__file__).resolve().parents[2]

_SILENCE_S = 30.0
"""How long a runner may be silent beyond the time after which it should have ended itself."""

_START_S = 120.0
"""How long importing torch may take."""

_TAIL_CHARS = 6000

_ENOUGH = 10
"""Failures after which the drill ends: more would add nothing new."""


@dataclass(frozen=True)
class Plan:
    """Which rounds run."""

    seed: int
    seconds: float
    """How long."""
    first: int = 0
    count: int | None = None
    """The number of rounds; None for as many as time permits."""
    times: int = 1
    """How often each round runs."""
    hang_s: float = 120.0
    """How long a round may take."""


Listener = Callable[[Summary], None]
"""Called after every round with the summary so far."""


def soak(plan: Plan, listener: Listener) -> Summary:
    """Run the rounds of a plan. An interrupt ends it early."""
    summary = Summary(plan.seed)
    begun = time.monotonic()
    number = plan.first
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="feedline-drill-") as folder:
        while _is_left(plan, number, summary.seconds) and len(summary.failures) < _ENOUGH:
            with _Runner(plan, number, plan.seconds - summary.seconds, Path(folder)) as runner:
                unfinished = None
                for line in runner.lines():
                    summary.seconds = time.monotonic() - begun
                    if "begun" in line:
                        unfinished, number = line, line["begun"]
                        continue
                    unfinished = None
                    number += 1
                    summary.add(line)
                    listener(summary)
                if unfinished is not None:
                    summary.add_end(unfinished, runner.end(), runner.tail())
                    number += 1
                    listener(summary)
                elif not runner.has_reported:
                    raise RuntimeError(f"The process that runs the rounds did not start:\n{runner.tail()}")
            summary.seconds = time.monotonic() - begun
            summary.next_process()
    summary.seconds = time.monotonic() - begun
    return summary


def _is_left(plan: Plan, number: int, seconds: float) -> bool:
    """True if there is a round to run, and time for it."""
    return seconds < plan.seconds and (plan.count is None or number < plan.first + plan.count)


class _Runner:
    """A process that runs rounds, from its start until it and all processes that it started have ended."""

    def __init__(self, plan: Plan, number: int, seconds: float, folder: Path) -> None:
        self._errors: IO[str] = (folder / "errors.txt").open("w+")
        self._silence_s = plan.hang_s + _SILENCE_S
        self.has_reported = False
        self._near, far = os.pipe()
        command = [sys.executable, "-m", "tests.drill", "--seed", plan.seed, "--from", number, "--report-to", far]
        command += ["--minutes", seconds / 60, "--hang", plan.hang_s, "--times", plan.times]
        command += [] if plan.count is None else ["--rounds", plan.first + plan.count - number]
        try:
            self._process = subprocess.Popen(
                list(map(str, command)),
                stdout=self._errors,
                stderr=self._errors,
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(folder)},  # files of an aborted runner are deleted with the folder
                pass_fds=(far,),
                start_new_session=True,
            )
        finally:
            os.close(far)
        self._pidfd = os.pidfd_open(self._process.pid)

    def __enter__(self) -> _Runner:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._near)
        os.close(self._pidfd)
        self._errors.close()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the messages of the process, until it ends or is silent for too long."""
        buffered = b""
        while data := self._read():
            buffered += data
            *lines, buffered = buffered.split(b"\n")
            for line in lines:
                self.has_reported = True
                yield json.loads(line)

    def _read(self) -> bytes:
        """Wait for data; return nothing when there will be no more.

        Workers inherit the pipe and may outlive the process, so its own end counts, not that of the pipe.
        """
        waiter = select.poll()
        waiter.register(self._near, select.POLLIN)
        waiter.register(self._pidfd, select.POLLIN)
        ready = dict(waiter.poll(1000 * (self._silence_s if self.has_reported else _START_S)))
        if self._near in ready:
            return os.read(self._near, 1 << 16)
        return b""

    def end(self) -> str:
        """Return how the process ended."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"said nothing for {self._silence_s:.0f} s"
        return f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"

    def tail(self) -> str:
        """Return the end of the output of the process and its workers."""
        self._errors.seek(0)
        return self._errors.read()[-_TAIL_CHARS:]
