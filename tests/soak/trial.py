"""One configuration of a soak: starts its program, checks what it delivers, kills it, and starts it again.

The kills come in the first half of the time, at moments drawn from the seed. The last life is long, so that slow leaks
show, and ends with SIGTERM: nothing may be left behind then.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any  # values of JSON

from tests.mappings import members
from tests.soak.cycle import WARM_UP
from tests.soak.data import Record
from tests.soak.sequence import Checker, Expected, undisturbed
from tests.soak.settings import Settings

ROOT = Path(__file__).resolve().parents[2]

_POLL_S = 0.5
_SILENCE_S = 60.0
"""How long a program may be silent beyond the time after which it should have ended itself."""
_TAIL_CHARS = 4000
_KILLS_SHARE = 0.5
"""The share of the time in which a program is killed repeatedly."""


@dataclass
class Life:
    """A program from its start to its end."""

    number: int
    first_step: int = 0
    cycles: list[dict[str, Any]] = field(default_factory=list)
    end: str = ""


@dataclass
class Result:
    """The result of one configuration."""

    name: str
    lives: list[Life] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    kills: int = 0
    steps: int = 0
    repeated_steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class Trial:
    """Runs one configuration."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings = settings
        self.result = Result(name)
        self._name = name
        self._folder = Path(settings.folder, name)
        self._begun = 0.0
        self._stopped = threading.Event()
        self._draw = random.Random(f"{settings.seed}/{name}/kills")
        batches = undisturbed(settings, name, self._folder / "undisturbed")
        self._batches = batches
        self._checker = Checker(Expected(batches))

    def run(self) -> Result:
        """Run all lives of the program. The result contains all problems."""
        self._begun = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for number in range(self.settings.resumes + 1):
                if self._stopped.is_set() or not self._live(number):
                    break
        except Exception as exc:
            self.result.problems.append(f"{type(exc).__name__}: {exc}")
            raise
        finally:
            with contextlib.suppress(ValueError):  # the generator is still running if its loader raised
                self._batches.close()  # ends its loader
            self._note()
        return self.result

    def stop(self) -> None:
        """End the trial early; may be called from another thread."""
        self._stopped.set()

    def _note(self) -> None:
        checker = self._checker
        self.result.steps, self.result.repeated_steps = checker.delivered, checker.repeated
        self.result.samples, self.result.seconds = checker.samples, self._elapsed_s

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def _live(self, number: int) -> bool:
        """Run the program once; return False if it ended by itself, which it must not."""
        life = Life(number)
        self.result.lives.append(life)
        is_last = number == self.settings.resumes
        mean_s = self.settings.seconds * _KILLS_SHARE / max(1, self.settings.resumes)
        kill_after_s = None if is_last else self._draw.uniform(0.1, 1.9) * mean_s
        with Program(self.settings, self._name, self._folder) as program:
            self._follow(program, life, kill_after_s)
            life.end = program.end(self.settings.grace_s)
            self.result.problems += [f"life {number} left behind: {what}" for what in program.left(is_last)]
            wanted = "finished" if is_last else "was killed by signal 9"
            if life.end != wanted or self._checker.problems:
                self.result.problems += [f"life {number}: {text}" for text in self._checker.problems]
                if life.end != wanted:
                    self.result.problems.append(f"life {number} {life.end}:\n{program.tail()}")
                return False
        return True

    def _follow(self, program: Program, life: Life, kill_after_s: float | None) -> None:
        """Process the program's messages until it ends; kill it, or ask it to stop, when it is time."""
        first_s, is_ending = None, False
        for message in program.messages():
            now = time.monotonic()
            if message:
                self._take_in(message, life)
            if "step" in message and first_s is None:
                first_s = now
            if self._stopped.is_set() and not is_ending:
                program.signal(signal.SIGKILL)
                is_ending = True
            if is_ending or first_s is None:
                continue
            if self._checker.problems or (kill_after_s is not None and now - first_s >= kill_after_s):
                program.signal(signal.SIGKILL)
                self.result.kills += 1
                is_ending = True
            elif kill_after_s is None and self._is_over(life):
                program.signal(signal.SIGTERM)
                is_ending = True

    def _is_over(self, life: Life) -> bool:
        enough = WARM_UP + self.settings.measured_cycles
        return self._elapsed_s >= self.settings.seconds and len(life.cycles) >= enough

    def _take_in(self, message: dict[str, Any], life: Life) -> None:
        if "step" in message:
            self._checker.take(message["step"], Record(tuple(message["indices"]), message["checksum"]))
        elif "saved" in message:
            self._checker.save(message["saved"])
        elif "resumed" in message:
            life.first_step = message["resumed"]
            self._checker.begin(message["resumed"])
        elif "cycle" in message:
            self.result.faults = dict(Counter(self.result.faults) + Counter(message.pop("faults")))
            self.result.restarts += message.pop("restarts")
            life.cycles.append(message)
        elif "problem" in message:
            self.result.problems.append(message["problem"])
        self._note()


class Program:
    """A training program, from its start until it and all processes that it started have ended."""

    def __init__(self, settings: Settings, name: str, folder: Path) -> None:
        self._errors = (folder / "errors.txt").open("w+")
        self._silence_s = settings.hang_s + _SILENCE_S
        self._temporary = tempfile.mkdtemp(prefix="soak-")  # short: the fork server binds a socket in it
        self._left: list[str] = []
        self._near, far = os.pipe()
        command = [sys.executable, "-m", "tests.soak.program", name, settings.as_json(), "--report-to", str(far)]
        caches = dict.fromkeys(("FEEDLINE_CACHE", "TORCHINDUCTOR_CACHE_DIR"), str(folder / "cache"))
        environment = {**os.environ, **caches, "TMPDIR": self._temporary}
        try:
            self._process = subprocess.Popen(
                command,
                stdout=self._errors,
                stderr=self._errors,
                cwd=ROOT,
                env=environment,
                pass_fds=(far,),
                start_new_session=True,
            )
        finally:
            os.close(far)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        os.set_blocking(self._near, False)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in {self.pid, *members(self.pid)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._near)
        os.close(self._pidfd)
        self._errors.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def signal(self, number: int) -> None:
        """Send a signal to the program, not to its workers."""
        os.kill(self.pid, number)

    # Any: values of JSON.
    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the program's messages until it ends or is silent for too long; {} if there is none for a while.

        Workers inherit the pipe and may outlive the program, so its own end counts, not that of the pipe.
        """
        buffered, last_message_s = b"", time.monotonic()
        waiter = select.poll()
        waiter.register(self._near, select.POLLIN)
        waiter.register(self._pidfd, select.POLLIN)
        while time.monotonic() - last_message_s < self._silence_s:
            ready = dict(waiter.poll(_POLL_S * 1000))
            data = self._read() if self._near in ready else b""
            if not data and self._pidfd in ready:
                return
            if not data:
                yield {}
                continue
            last_message_s = time.monotonic()
            *lines, buffered = (buffered + data).split(b"\n")
            yield from map(json.loads, lines)

    def _read(self) -> bytes:
        try:
            return os.read(self._near, 1 << 16)
        except BlockingIOError:
            return b""

    def end(self, grace_s: float) -> str:
        """Wait until the program and its workers have ended, and return how it ended."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"said nothing for {self._silence_s:.0f} s"
        deadline = time.monotonic() + grace_s
        while (orphans := members(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._left = [f"process {pid}, {grace_s:.0f} s after the program had ended" for pid in orphans]
        if code == 0:
            return "finished"
        return f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"

    def left(self, is_clean: bool) -> list[str]:
        """List what the program left behind: processes and, if it ended by itself, temporary files."""
        files = sorted(os.listdir(self._temporary)) if is_clean else []
        return self._left + [f"temporary file {name}" for name in files]

    def tail(self) -> str:
        """Return the end of the output of the program and its workers."""
        self._errors.seek(0)
        return self._errors.read()[-_TAIL_CHARS:]
