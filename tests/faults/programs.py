"""Programs that tests start, watch and kill. Each is Python source that runs in its own session."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests import program_server

DEADLINE_S = 100.0
"""Timeout for anything that has to happen; far more than it takes."""

ROOT = Path(__file__).resolve().parents[2]

PREAMBLE = """
import os, sys, signal, time
import numpy as np
import feedline
from feedline import Loader

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def hear():
    return os.read(0, 1)

class Numbers:
    '''Sample i is an array full of i.'''
    def __init__(self, count=64):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return np.full(1000, index)

def worker_pids():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()
"""


class Program:
    """A running program: its output line by line, its workers, its end."""

    def __init__(
        self, process: subprocess.Popen[bytes] | program_server.Forked, stdin: IO[str], stdout: IO[str], errors: IO[str]
    ) -> None:
        self.process = process
        self.stdin = stdin
        self._out = stdout
        self._errors = errors
        self.pid = process.pid
        self._watched: list[int] = []
        self._received = ""

    def line(self) -> str:
        """Wait for the next line of the program's output."""
        while "\n" not in self._received:
            ready, _, _ = select.select([self._out], [], [], DEADLINE_S)
            data = os.read(self._out.fileno(), 4096) if ready else b""
            if not data:
                raise AssertionError(f"the program said nothing more; it wrote:\n{self.errors()}")
            self._received += data.decode()
        text, _, self._received = self._received.partition("\n")
        return text

    def watch(self, pids: str) -> list[int]:
        """Watch processes, given their pids as text, from now on."""
        numbers = [int(pid) for pid in pids.split()]
        assert numbers, "there are no processes to watch"
        for pid in numbers:
            with contextlib.suppress(ProcessLookupError):  # already gone, as it should be
                self._watched.append(os.pidfd_open(pid))
        return numbers

    def go_on(self) -> None:
        """Let a program that waits in `hear()` continue."""
        self.stdin.write(".")
        self.stdin.flush()

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for the end of the program itself; return its exit code."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program did not end; it wrote:\n{self.errors()}") from None

    def errors(self) -> str:
        """Return what the program and its workers have written to stderr so far."""
        self._errors.seek(0)
        return self._errors.read()

    def watched_are_gone(self) -> bool:
        """Wait for the end of every watched process."""
        deadline = time.monotonic() + DEADLINE_S
        waiting = select.poll()
        for watched in self._watched:
            waiting.register(watched, select.POLLIN)
        left = set(self._watched)
        while left and (rest_s := deadline - time.monotonic()) > 0:
            for fd, _ in waiting.poll(rest_s * 1000):
                waiting.unregister(fd)
                left.discard(fd)
        return not left

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self.stdin.close()
        self._out.close()
        for watched in self._watched:
            os.close(watched)


@contextmanager
def running(
    text: str,
    *arguments: object,
    keep_open: int | None = None,
    finalizes: bool = False,
    afresh: bool = False,
    inside: Sequence[str] = (),
) -> Iterator[Program]:
    """Run a program for the duration of the block; any of its processes that are left then are killed.

    It is forked from a process that has imported torch, which is fast (see `tests/program_server.py`); or, for tests of
    memory or threads, it runs in a new interpreter (`afresh`). `inside` is a command prefix that starts the new
    interpreter under other limits (see `limits`).
    """
    program_stdin, stdin = os.pipe()
    stdout, program_stdout = os.pipe()
    text = PREAMBLE + textwrap.dedent(text)
    process: subprocess.Popen[bytes] | program_server.Forked
    with tempfile.TemporaryFile("w+") as errors, open(stdin, "w") as to_program, open(stdout) as from_program:
        try:
            # Any: a keyword of either function.
            files: dict[str, Any] = {"stdin": program_stdin, "stdout": program_stdout, "stderr": errors.fileno()}
            if afresh or inside:
                command = [*inside, sys.executable, "-c", text, *map(str, arguments)]
                process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **files)
            else:
                process = program_server.start(
                    text,
                    arguments,
                    cwd=ROOT,
                    pass_fds=() if keep_open is None else (keep_open,),
                    start_new_session=True,
                    finalizes=finalizes,
                    **files,
                )
        finally:
            os.close(program_stdin)
            os.close(program_stdout)
        with contextlib.closing(Program(process, to_program, from_program, errors)) as program:
            yield program
