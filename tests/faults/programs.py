"""Programs that tests start, watch and kill: each is a Python text that runs in a session of its own."""

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
from typing import IO

from tests import program_server

DEADLINE_S = 100.0
"""How long anything may take that has to happen. Far more than it takes."""

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
        self, process: subprocess.Popen[str] | program_server.Forked, stdin: IO[str], stdout: IO[str], errors: IO[str]
    ) -> None:
        self.process = process
        self.stdin = stdin
        self._out = stdout
        self._errors = errors
        self.pid = process.pid
        self._watched: list[int] = []
        self._heard = ""

    def line(self) -> str:
        """Wait for the next line the program says."""
        while "\n" not in self._heard:
            ready, _, _ = select.select([self._out], [], [], DEADLINE_S)
            data = os.read(self._out.fileno(), 4096) if ready else b""
            if not data:
                raise AssertionError(f"the program said nothing more; it wrote:\n{self.errors()}")
            self._heard += data.decode()
        text, _, self._heard = self._heard.partition("\n")
        return text

    def watch(self, pids: str) -> list[int]:
        """Keep an eye on processes, whose numbers the program said, from now on."""
        numbers = [int(pid) for pid in pids.split()]
        assert numbers, "there is nobody to watch"
        for pid in numbers:
            with contextlib.suppress(ProcessLookupError):  # gone already, which is all that is asked of it
                self._watched.append(os.pidfd_open(pid))
        return numbers

    def go_on(self) -> None:
        """Let the program go on that waits in `hear()`."""
        self.stdin.write(".")
        self.stdin.flush()

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for the end of the program itself; returns its exit code."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program did not end; it wrote:\n{self.errors()}") from None

    def errors(self) -> str:
        """What the program and its workers have written to their error output so far."""
        self._errors.seek(0)
        return self._errors.read()

    def watched_are_gone(self) -> bool:
        """Wait for the end of every process that is watched."""
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
def running(text: str, *arguments: object, keep_open: int | None = None, finalizes: bool = False) -> Iterator[Program]:
    """Run a program for the length of the block; whatever is left of it then is killed.

    It is forked from a process that has torch imported, and costs little (see `tests/program_server.py`).
    """
    heard, stdin = os.pipe()
    stdout, said = os.pipe()
    with tempfile.TemporaryFile("w+") as errors, open(stdin, "w") as to_program, open(stdout) as from_program:
        try:
            process = program_server.start(
                PREAMBLE + textwrap.dedent(text),
                arguments,
                stdin=heard,
                stdout=said,
                stderr=errors.fileno(),
                cwd=ROOT,
                pass_fds=() if keep_open is None else (keep_open,),
                start_new_session=True,
                finalizes=finalizes,
            )
        finally:
            os.close(heard)
            os.close(said)
        with contextlib.closing(Program(process, to_program, from_program, errors)) as program:
            yield program


@contextmanager
def running_afresh(text: str, *arguments: object, inside: Sequence[str] = ()) -> Iterator[Program]:
    """Run a program in a new interpreter: one whose memory or threads are what the test is about.

    `inside` are the words of a command that becomes the program, in other circumstances (see `limits`).
    """
    with (
        tempfile.TemporaryFile("w+") as errors,  # a pipe would be held open by workers
        subprocess.Popen(
            [*inside, sys.executable, "-c", PREAMBLE + textwrap.dedent(text), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.closing(Program(process, process.stdin, process.stdout, errors)) as program:
            yield program


def shared_memory_names() -> set[str]:
    return set(os.listdir("/dev/shm"))
