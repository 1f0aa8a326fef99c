"""Runs user code in a process of its own, so that hangs, crashes and excessive memory use harm nothing else.

The process is forked where possible, with other threads quiesced, as workers are. It leads a session, which is killed
as a whole at the end in every case. If the caller is killed, the system kills the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from feedline.errors import DatasetFailed, FeedlineError, InternalError
from feedline.system.openmp import prepare_fork
from feedline.system.process import scheduled_s, seen_bytes
from feedline.system.sizes import bytes_text
from feedline.tools.measure.measured import headroom_now
from feedline.workers.fork_safety import quiesce_threads
from feedline.workers.processes.arena import Stacks
from feedline.workers.processes.link import STACK_SIGNAL, end_with

_POLL_S = 0.05
_START_S = 30.0
"""Time for the process to start, before the given time begins."""
_GRACE_S = 1.0
"""How much longer than the given time a started sample may take without computing."""
_BUSY_GRACE_S = 10.0
"""The same while the process or one of its children computes or waits for a core."""
_MOVING = 0.05
"""The share of a second that counts as computing."""
_MEMORY_SHARE = 0.8
"""Share of the available memory that the dataset may use."""


class Kept(Protocol):
    """Receives the messages of a process; each sets one of its attributes."""

    ended: str | None
    """Why the process ended early, in words; None if it did not."""
    ended_in: str
    """The stage in which it ended."""

    @property
    def is_useful(self) -> bool:
        """True if there is enough to report even if the process ends early."""


K = TypeVar("K", bound=Kept)


@dataclass(frozen=True)
class _Message:
    """A message from the process that runs user code."""

    kind: Literal["stage", "part", "failed", "done"]
    name: str = ""
    """The stage, or the attribute to set."""
    # Any: the value of the attribute; or feedline's error, or the traceback of another.
    value: Any = None


Send = Callable[..., None]
"""Sends "stage" and its name, or "part", the name of an attribute and its value."""


def watch(
    body: Callable[[Send], None],
    kept: K,
    *,
    seconds: float,
    memory_bytes: int | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> K:
    """Run user code in a process that is killed when its time or memory is up, and return its results.

    `body` runs in that process and sends stages and attributes of `kept`. Blocks for about `seconds`; a step that has
    begun may take a second longer, or ten if it computes. Time in which the process had no core, or the machine was
    suspended, does not count. The process may use `memory_bytes`, or four fifths of the free memory if that is None.
    `on_stage` is called with the name of each stage when it begins.

    Raises BadOption: there is no such dataset; DatasetFailed: it cannot be made, has no samples, or no sample can be
    made within this time and memory; InternalError: `body` itself failed.
    """
    if memory_bytes is None:
        memory_bytes = int((headroom_now().memory_bytes or 1 << 62) * _MEMORY_SHARE)
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
    near, far = context.Pipe(duplex=False)
    stacks = Stacks()
    prepare_fork()
    process = context.Process(target=_run, args=(body, os.getpid(), far, stacks.far))
    with quiesce_threads():
        process.start()
    far.close()
    try:
        return _Listener(near, process.pid, stacks, memory_bytes, on_stage).listen(TimeBudget(seconds), kept)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)  # until it leads its own session, it may be in ours
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        process.close()
        near.close()
        stacks.close()


@dataclass
class TimeBudget:
    """Decides when a process has used up its time. Only time in which the process could run counts.

    If much time has passed since the listener last polled, the listener itself was stopped or had no core, and most
    likely the process as well. So a step counts for at most twice the poll interval. Time in which the main
    thread of the process was ready but had no core does not count either.
    """

    seconds: float
    """What the process is given once it has started."""
    spent_s: float = 0.0
    """Time counted since it has started; before that, since it was created."""
    has_begun: bool = False
    _last: tuple[float, float] | None = None
    """The time and the time without a core at the last poll."""
    _moved: tuple[float, float] = (0.0, 0.0)
    """How long the processes had computed when they were last seen to, and the time counted then."""

    def begin(self) -> None:
        """Start counting the given time: the process has started."""
        if not self.has_begun:
            self.has_begun, self.spent_s = True, 0.0

    def is_over(self, now_s: float, queued_s: float, moved_s: Callable[[], float]) -> bool:
        """Count the time since the last call, and return True if the process must be ended.

        Args:
            now_s: time on the listener's clock.
            queued_s: how long the main thread of the process has been ready without a core.
            moved_s: returns how long the process and its children have computed or waited for a core. Called only when
                the time is up.
        """
        if self._last is not None:
            step_s = min(now_s - self._last[0], 2 * _POLL_S)
            self.spent_s += max(0.0, step_s - max(0.0, queued_s - self._last[1]))
        self._last = now_s, queued_s
        beyond_s = self.spent_s - (self.seconds if self.has_begun else _START_S)
        if beyond_s <= 0:
            return False
        moved = moved_s()
        if moved - self._moved[0] > _MOVING * _GRACE_S:
            self._moved = moved, self.spent_s
        return beyond_s > _BUSY_GRACE_S or (beyond_s > _GRACE_S and self.spent_s - self._moved[1] > _GRACE_S)


def _session_s(leader: int) -> float:
    """Return how long the processes of a session have computed or waited for a core."""
    total_s = 0.0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
            setup = status.read_text().rpartition(")")[2].split()
            if int(setup[3]) == leader:
                total_s += (int(setup[11]) + int(setup[12])) / _TICKS + scheduled_s(int(status.parent.name))[1]
    return total_s


_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class _Listener:
    """Receives the messages of the process, and ends it when its time or memory is up."""

    connection: Connection
    pid: int
    stacks: Stacks
    memory_bytes: int
    on_stage: Callable[[str], None]
    stage: str = "start"

    def listen(self, budget: TimeBudget, kept: K) -> K:
        """Receive messages until the last one, or until the time is up."""
        while True:
            # The death of the process does not close the connection if its own children still hold it.
            end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if self.connection.poll(0 if end is not None else _POLL_S):
                try:
                    message: _Message = self.connection.recv()
                except EOFError:
                    end = end or os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                else:
                    if message.kind == "done":
                        return kept
                    budget.begin()
                    self._take(message, kept)
                    continue
            if end is not None:  # it is not reaped yet, so its session can still be killed
                return self._cut_short(kept, "crashes", _how(end), self.stacks.read())
            used = seen_bytes(self.pid) or 0
            if used > self.memory_bytes:
                text = f"took {bytes_text(used)} of memory, and the limit is {bytes_text(self.memory_bytes)}"
                return self._cut_short(kept, "crashes", text, self.stacks.of(self.pid))
            computed_s, queued_s = scheduled_s(self.pid)
            if budget.is_over(time.monotonic(), queued_s, lambda: _session_s(self.pid)):
                text = f"did not finish within {budget.spent_s:.0f} s, of which it computed {computed_s:.1f} s"
                return self._cut_short(kept, "hangs", text, self.stacks.of(self.pid))

    def _take(self, message: _Message, kept: Kept) -> None:
        if message.kind == "stage":
            self.stage = message.name
            self.on_stage(message.name)
        elif message.kind == "part":
            setattr(kept, message.name, message.value)
        elif isinstance(message.value, FeedlineError):
            raise message.value
        else:
            raise InternalError(f"A part of the probe itself failed, {self._where}:\n{message.value}")

    @property
    def _where(self) -> str:
        return _WHERE.get(self.stage) or f"while it was measured ({self.stage})"

    def _cut_short(self, kept: K, reason: str, what: str, stack: str | None) -> K:
        """Return the results so far if samples were made; otherwise raise."""
        happened = f"The dataset {what}, {self._where}"
        if kept.is_useful:
            kept.ended, kept.ended_in = happened, self.stage
            return kept
        raise DatasetFailed(f"{happened}. {_ADVICE[reason]}", reason, _users(stack or ""))


def _how(end: os.waitid_result) -> str:
    if end.si_code != os.CLD_EXITED:
        return f"was killed by signal {end.si_status} ({signal.strsignal(end.si_status)})"
    return f"ended its process with status {end.si_status}"


def _users(stack: str) -> str:
    """Return the stacks that Python wrote, without the frames that lead to the user's code."""
    lines = [line for line in stack.splitlines() if not any(part in line for part in _OURS)]
    return "\n".join(lines) if any('File "' in line for line in lines) else ""


_OURS = (f'File "{Path(__file__).parents[2]}', "multiprocessing/", 'File "<frozen')
_ADVICE = {
    "hangs": "Check what it waits for; if it is only slow, give it more time with --seconds.",
    "crashes": "Run it alone, in a separate program: python -X faulthandler.",
}
_WHERE = {
    "start": "before any of its code ran",
    "import": "while it was imported and created",
    "samples": "while it was inspected and samples were made one after the other",
    "batch": "while a batch was collated",
    "loader": "while the loader began an epoch",
    "threads": "while several threads made samples",
}


# -- in that process ---


def _run(body: Callable[[Send], None], parent_pid: int, connection: Connection, stacks_fd: int) -> None:
    """Run `body`, which probes a dataset and sends messages about it; the target of a process."""
    os.setsid()  # so that all processes it starts can be ended with it
    if os.getppid() != parent_pid:
        return  # the parent has already ended
    end_with(parent_pid, -1, started_by_main_thread=True)
    os.dup2(2, 1)  # user code prints to stderr, so that stdout holds only the result
    _warn_once()
    faulthandler.enable(stacks_fd)
    faulthandler.register(STACK_SIGNAL, file=stacks_fd, all_threads=True)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # killed first if the machine runs out of memory
    try:
        body(lambda *fields: connection.send(_Message(*fields)))
        connection.send(_Message("done"))
    except FeedlineError as exc:
        connection.send(_Message("failed", value=exc))
    except Exception as exc:  # exceptions of user code are caught where it is called
        connection.send(_Message("failed", value="".join(traceback.format_exception(exc))))


def _warn_once() -> None:
    """Show equal warnings once: samples are made again and again, and each filter that is set makes Python forget."""
    seen: set[tuple[str, type, str, int]] = set()
    show = warnings.showwarning

    # Any: the rest of the arguments, which are passed on.
    def show_once(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any, **options: Any
    ) -> None:
        warning = str(message), category, filename, lineno
        if warning not in seen:
            seen.add(warning)
            show(message, category, filename, lineno, *rest, **options)

    warnings.showwarning = show_once
