"""Recover from the death of a worker: replace it, redo its work, and find samples that kill.

After two workers have died over a task, its samples are made one by one; a sample that alone kills two workers in a row
is blamed. The user's policy decides what to do with it, as with any sample that fails.

Workers also die of causes unrelated to their samples: another process kills them, or the system runs out of memory. So
one death, or one death per worker, never blames a sample.

A worker that ends by its own fault before it is ready is not replaced, since the next one would end the same way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from feedline.abc.faults import NEIGHBOUR, ErrorPolicy, Failure, Fault, Verdict, index_key
from feedline.delivery.machine.batch_indices import as_list, with_item
from feedline.delivery.machine.epoch import Flight, Limits, Trouble
from feedline.errors import PACKAGE, WorkerDied, WorkerError, WorkerTimeout
from feedline.system.failures import add_note, is_interrupt, samples_text
from feedline.types import Draw, Notes, Result, ResultKind, Task
from feedline.workers.fetch.failure_notes import origin_text
from feedline.workers.fetch.guard import neighbour_of

_DEATHS_BEFORE_SEARCH = 2
"""Workers that must die over a task before its samples are tried separately."""

_DEATHS_ALONE = 2
"""Workers in a row that must die over a single sample before it is blamed. One may have died of another cause."""

_MOST_STREAM_DEATHS = 4
"""Workers that may die over the same batch of a stream."""


def _would_recur(death: BaseException) -> bool:
    """True if a new worker would end the same way: this one failed by itself before it was ready to work."""
    if isinstance(death, WorkerDied):
        return not death.was_ready and death.was_killed is False
    return not isinstance(death, WorkerTimeout)


Redone = Task | Result | None
"""What to do with a task over which a worker died: send a probe, answer it with a result, or (None) assign it again."""


@dataclass
class Recovery:
    """Decide what to do with tasks over which workers died, and whether another worker may be started."""

    policy: ErrorPolicy | None = None
    """Decides about a sample that kills its worker."""
    dataset: object = None
    batched: bool = True
    """False if tasks are single samples."""
    searches: bool = True
    """False if samples cannot be tried one by one, because that would change the dataset's state."""
    restarts: int = 0
    """Workers that may be replaced in an epoch."""
    wall_s: Callable[[], float] = lambda: 0.0
    """The time of day, for the fault log."""
    chance: Callable[[], float] = lambda: 0.5
    """A random number below 1, for policies that spread their pauses."""
    _left: int = field(init=False)
    """Workers that may still be replaced in this epoch."""

    def __post_init__(self) -> None:
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Reset the budget."""
        self._left = self.restarts

    @property
    def may_restart(self) -> bool:
        """True while another worker may be replaced."""
        return self._left > 0

    # -- workers that died -------------------------------------------------------------------------------------------

    def end_by(self, death: BaseException, begun: Flight | None) -> BaseException | None:
        """Count a death; return the exception that ends the epoch, None if the worker is to be replaced.

        Args:
            death: why the worker died.
            begun: the task that it was working on.
        """
        deaths = 1 if begun is None or begun.trouble is None else begun.trouble.deaths + 1
        if begun is not None and not self._may_search(begun) and deaths >= _MOST_STREAM_DEATHS:
            death.args = (
                f"{death} {deaths} workers have died at this point. The samples of a stream, or of a dataset that "
                "keeps a state, cannot be tried one by one to find the one that kills.",
            )
        elif self._left > 0 and not _would_recur(death):
            self._left -= 1
            return None
        if isinstance(death, WorkerDied) and not death.was_ready:
            death.args = (
                f"{death} Check what runs before a worker is ready (worker_init_fn, unpickling the dataset, importing "
                "the program), and the limit on memory.",
            )
        return self.with_budget_note(death)

    def with_budget_note(self, last: BaseException) -> BaseException:
        """Add to the last death's message that the budget is spent, if it is; return the exception."""
        if self._left <= 0 < self.restarts and isinstance(last, WorkerError):
            count = self.restarts
            last.args = (
                f"{last} This is one death too many: {count} workers were replaced in this epoch, and "
                f"restarts={count} allows no more. Samples that were found to kill are in the loader's `faults`, and "
                "are not tried again.",
            )
        return last

    def restart_warning(self, death: BaseException, begun: Flight | None) -> str:
        """Return the warning about a worker that was replaced."""
        text, what = str(death), ""
        if begun is not None and begun.requested.wanted and not begun.is_call:
            task = begun.requested
            samples = "" if task.stays else f" ({samples_text(self._samples_of(task))})"
            doing = "making" if begun.suspect is None else "searching for the sample that kills workers, in"
            what = f" It was {doing} batch {task.ordinal}{samples}."
        restart = f"restart {self.restarts - self._left} of {self.restarts} in this epoch"
        if isinstance(death, WorkerTimeout):  # it ends with a stack
            text += "\n"
        return f"{text}{what} Another worker has taken its place and its work; nothing is lost ({restart})."

    # -- tasks over which workers died -------------------------------------------------------------------------------

    def redo(self, begun: Flight, death: BaseException) -> Redone:
        """Decide how to redo a task over which a worker died; if it killed before, search for the sample."""
        suspect = begun.requested
        trouble = suspect.trouble = suspect.trouble or Trouble()
        if begun.suspect is not None:
            trouble.deaths_alone += 1
            if trouble.deaths_alone < _DEATHS_ALONE:
                return self._alone(suspect, trouble)
            return self._found(suspect, trouble, death)
        trouble.deaths += 1
        if trouble.deaths < _DEATHS_BEFORE_SEARCH or not self._may_search(begun):
            return None
        trouble.place = -1
        return self.survived(suspect)

    def _may_search(self, flight: Flight) -> bool:
        return self.searches and not flight.stays

    def survived(self, suspect: Flight) -> Redone:
        """Try the next sample of a task that kills, as the one before was made without harm."""
        trouble = suspect.trouble
        assert trouble is not None
        trouble.place, trouble.deaths_alone = trouble.place + 1, 0
        while trouble.place in suspect.task.skip:
            trouble.place += 1
        if trouble.place < len(self._samples_of(suspect)):
            return self._alone(suspect, trouble)
        trouble.deaths = 0  # each sample can be made: it was an accident, or they are too much together
        return None

    def _alone(self, suspect: Flight, trouble: Trouble) -> Task:
        """Return the task to make a single sample of another one."""
        task, draw, place = suspect.task, suspect.task.draw, trouble.place
        return Task(
            0,
            [self._samples_of(suspect)[place]] if self.batched else task.indices,
            draw=Draw(draw.key, draw.first + draw.stride * place, draw.stride),
            resume=task.resume,
        )

    def _samples_of(self, flight: Flight) -> list[object]:
        return as_list(flight.task.indices, batched=self.batched and not flight.stays)

    def _found(self, suspect: Flight, trouble: Trouble, death: BaseException) -> Redone:
        """Apply the policy's verdict to a sample that kills."""
        task, place = suspect.task, trouble.place
        index = self._samples_of(suspect)[place]
        does = "blocks" if isinstance(death, WorkerTimeout) else "kills"
        origin = origin_text(self.dataset, index)
        origin += "," if origin else ""
        error = type(death)(f"Sample {index!r}{origin} {does} every worker that makes it. The last one: {death}")
        known = index_key(index)
        trouble.attempts[known] = trouble.attempts.get(known, 0) + 1
        failure = Failure(index, error, "worker", trouble.attempts[known], suspect.worker)
        try:
            verdict = Verdict("raise")
            if self.policy is not None and not self.policy.never_catches:
                verdict = self.policy.decide(failure, self.chance())
        except Exception as exc:  # from the user's policy: raised in place of the batch
            if is_interrupt(exc):
                raise
            add_note(exc, f"About sample {index!r}, which {does} its worker (stage: worker).")
            return Result(ResultKind.FAILED, suspect.worker, task.id, exc)
        action, now_s = verdict.action, self.wall_s()
        other = None
        if action == "replace":
            other = neighbour_of(index, self.dataset, error) if verdict.index is NEIGHBOUR else verdict.index
        if action == "raise" or (action == "replace" and other is None):
            notes = Notes(faults=[Fault.of(failure, "raise", time=now_s)])
            return Result(ResultKind.FAILED, suspect.worker, task.id, error, notes=notes)
        trouble.deaths = _DEATHS_BEFORE_SEARCH - 1  # one more death starts the search for the next sample
        if action == "skip":
            task.skip = (*task.skip, place)
            trouble.faults.append(Fault.of(failure, "skip", time=now_s))
        elif action == "replace":
            task.indices = with_item(task.indices, place, other, batched=self.batched)
            trouble.faults.append(Fault.of(failure, "replace", time=now_s, replacement=other))
        return None

    # -- workers that are stuck --------------------------------------------------------------------------------------

    def stuck_error(self, late: Flight, limits: Limits, elapsed_s: float, seen: Seen) -> WorkerTimeout:
        """Return the error for an unresponsive worker: its task, and what it is doing."""
        timeout_s = limits.timeout_s
        who = f"worker {late.worker}" + ("" if seen.pid is None else f" (pid {seen.pid})")
        samples = "" if late.stays else f" ({samples_text(self._samples_of(late))})"
        samples += "" if late.requested.wanted else " of an iteration that was left"
        doing = "Its stack is not available."
        if seen.stack is not None:
            doing = f"What it is doing (most recent call first):\n{users_frames(seen.stack)}"
        why_not = "" if seen.is_killed else self._why_not_killed(limits, seen)
        return WorkerTimeout(
            f"DataLoader timed out after {timeout_s} seconds: {who} is still at batch {late.ordinal}{samples}, after "
            f"{max(timeout_s, elapsed_s):.1f} seconds. Raise `timeout`, or look for a sample that blocks (a network "
            f"read without its own timeout is the usual cause).{why_not} {doing}"
        )

    def _why_not_killed(self, limits: Limits, seen: Seen) -> str:
        if limits.kills_stuck and not self.may_restart:
            count = self.restarts
            return f" It is not replaced: {count} workers were replaced in this epoch, and restarts= allows no more."
        if limits.kills_stuck:
            return " It is not replaced: this engine cannot end a worker that is busy; engine='process' can."
        how = "restarts=" if seen.pid is not None else "engine='process' and restarts="
        return f" With {how}, such as restarts=10, it would be replaced, and its batch made again."


class Seen(NamedTuple):
    """The result of inspecting an unresponsive worker."""

    pid: int | None = None
    stack: str | None = None
    is_killed: bool = False


_MACHINERY = tuple(os.path.join(PACKAGE, folder, "") for folder in ("delivery", "workers", "loader"))
_FRAME = re.compile(r'\s*File "(.*)", line')


def users_frames(stacks: str) -> str:
    """Return the calls that a worker has made since it left feedline's machinery.

    Args:
        stacks: those of all its threads, in the format of `faulthandler`: the innermost frame first.
    """
    _, _, stack = stacks.rpartition("Current thread ")
    lines = stack.rstrip().splitlines()
    lines = lines[not _FRAME.match(lines[0]) :] if lines else []
    paths = [found[1] if (found := _FRAME.match(line)) else "" for line in lines]
    end = next((number for number, path in enumerate(paths) if path.startswith(_MACHINERY)), len(lines))
    return "\n".join(lines[: end or 1])  # the innermost frame if it is working in the machinery itself
