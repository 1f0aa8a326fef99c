"""Recover from the death of a worker: replace it, redo its work, and find samples that kill.

After two workers have died over a task, it is made in halves until one sample is left; if that sample alone kills two
workers in a row, it is blamed. The user's policy decides what to do with it, as with any sample that fails.

Workers also die of causes unrelated to their samples: another process kills them, or the system runs out of memory. So
one death, or one death per worker, never blames a sample.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from feedline.abc.error_policy import ErrorPolicy
from feedline.abc.faults import NEIGHBOUR, Failure, Fault, Verdict
from feedline.delivery.machine.batch_indices import as_list, rows_of, with_item
from feedline.delivery.machine.bisection import Bisection
from feedline.delivery.machine.flight import Flight, Trouble
from feedline.delivery.machine.prefetch import Limits
from feedline.errors import PACKAGE, NotPicklable, WorkerError, WorkerStartError, WorkerTimeout
from feedline.system.failures import add_note, is_interrupt, samples_text
from feedline.types import Draw, Notes, Result, ResultKind, Task
from feedline.types.indices import index_key
from feedline.workers.fetch.failure_notes import origin_text
from feedline.workers.fetch.guard import neighbour_of

_DEATHS_BEFORE_SEARCH = 2
"""Workers that must die over a task before its samples are tried separately."""

_MOST_STREAM_DEATHS = 4
"""Workers that may die over the same batch of a stream."""

_MOST_STARTS = 2
"""How often in a row to restart a worker that ends by its own fault before it is ready, such as by an exception
in `worker_init_fn`.
"""

_MOST_STARTS_KILLED = 9
"""The same for one that was killed, or that ended for an unknown reason (`WorkerDied.was_killed`). If it was killed
and the user set `restarts`, that is the only limit.
"""

_DOING = "What it is doing (most recent call first):\n"


@dataclass(frozen=True)
class RecoveryOptions:
    """Options for workers that die or are stuck."""

    policy: ErrorPolicy | None = None
    """Decides about a sample that kills its worker."""
    dataset: object = None
    batched: bool = True
    """False if tasks are single samples."""
    searches: bool = True
    """False if samples cannot be tried one by one, because that would change the dataset's state."""
    restarts: int = 0
    """Workers that may be replaced in an epoch."""
    sets_restarts: bool = True
    """False if `restarts` is the default and not the user's choice."""
    wall_s: Callable[[], float] = lambda: 0.0
    """The time of day, for the fault log."""
    chance: Callable[[], float] = lambda: 0.5
    """A random number below 1, for policies that spread their pauses."""


Redone = Task | Result | None
"""What to do with a task over which a worker died: send a probe, answer it with a result, or (None) assign it again."""


class Recovery:
    """Decide what to do with tasks over which workers died, and whether another worker may be started."""

    def __init__(self, options: RecoveryOptions) -> None:
        self._options = options
        self._left = options.restarts
        self._starts_failed: dict[int, int] = {}
        self._shown: set[str] = set()
        """Stacks of stuck workers that warnings have shown."""

    def begin_epoch(self) -> None:
        """Reset the budget."""
        self._left = self._options.restarts
        self._starts_failed.clear()

    @property
    def may_restart(self) -> bool:
        """True while another worker may be replaced."""
        return self._left > 0

    # -- workers that died -------------------------------------------------------------------------------------------

    def is_ready(self, death: BaseException) -> bool:
        """True if a worker died at work; otherwise `death` is the exception that kept it from getting ready."""
        return isinstance(death, WorkerError)

    def end_by(self, worker: int, death: BaseException, begun: Flight | None) -> BaseException | None:
        """Count a death; return the exception that ends the epoch, None if the worker is to be replaced.

        Args:
            worker: the worker that died.
            death: why it died.
            begun: the task that it was working on.
        """
        failed = not self.is_ready(death) or not getattr(death, "was_ready", True)
        starts = self._starts_failed[worker] = self._starts_failed.get(worker, 0) + 1 if failed else 0
        was_killed = getattr(death, "was_killed", False)
        stays = begun is not None and (begun.stays or not self._options.searches)
        deaths = 0 if begun is None or begun.trouble is None else begun.trouble.deaths
        stays_stuck = stays and deaths + 1 >= _MOST_STREAM_DEATHS
        if stays_stuck:
            death.args = (
                f"{death} {deaths + 1} workers have died at this place. The samples of a stream, or of a dataset that "
                "keeps a state, cannot be tried one by one to find the one that kills.",
            )
        never_starts = starts > self._most_starts(was_killed)
        if never_starts or (starts > _MOST_STARTS and self._left <= 0):
            self._note_failed_starts(death, worker, starts)
        is_final = isinstance(death, (WorkerStartError, NotPicklable))  # a replacement would end the same way
        if self._left <= 0 or stays_stuck or never_starts or is_final:
            return self.with_budget_note(death)
        self._left -= 1
        return None

    def _most_starts(self, was_killed: bool | None) -> float:
        """How often in a row to restart a worker that ended this way before it was ready."""
        if was_killed and self._options.sets_restarts:
            return math.inf
        return _MOST_STARTS if was_killed is False else _MOST_STARTS_KILLED

    def answered(self, worker: int) -> None:
        """Record the first answer of a worker since it was started."""
        self._starts_failed.pop(worker, None)

    def with_budget_note(self, last: BaseException) -> BaseException:
        """Add to the last death's message that the budget is spent, if it is; return the exception."""
        if self._left <= 0 < self._options.restarts and isinstance(last, WorkerError):
            count = self._options.restarts
            last.args = (
                f"{last} This is one death too many: {count} workers were replaced in this epoch, and "
                f"restarts={count} allows no more. Samples that were found to kill are in the loader's `faults`, and "
                "are not tried again.",
            )
        return last

    def _note_failed_starts(self, death: BaseException, worker: int, count: int) -> None:
        """Add to the exception that this worker failed several times to get ready."""
        note = (
            f"Worker {worker} has ended {count} times in a row before it was ready to work. Check what runs that "
            "early (worker_init_fn, unpickling the dataset, importing the program), and the limit on memory."
        )
        if isinstance(death, WorkerError):
            death.args = (f"{death} {note}",)
        else:
            add_note(death, note)

    def restart_warning(self, death: BaseException, worker: int, begun: Flight | None) -> str:
        """Return the warning about a worker that was replaced."""
        text = (
            str(death)
            if isinstance(death, WorkerError)
            else (f"Worker {worker} could not get ready: {type(death).__name__}: {death}.")
        )
        what = ""
        if begun is not None and begun.requested.wanted and not begun.is_call:
            task = begun.requested
            samples = "" if task.stays else f" ({samples_text(self._samples_of(task))})"
            doing = "making" if begun.suspect is None else "searching for the sample that kills workers, in"
            what = f" It was {doing} batch {task.ordinal}{samples}."
        restart = f"restart {self._options.restarts - self._left} of {self._options.restarts} in this epoch"
        if isinstance(death, WorkerTimeout):  # it ends with a stack, which only the first warning shows
            start, _, frames = text.partition(_DOING)
            if frames in self._shown:
                text = f"{start}It is stuck at the same place as an earlier one:\n{frames.splitlines()[0]}"
            elif frames:
                self._shown.add(frames)
            text += "\n"
        return f"{text}{what} Another worker has taken its place and its work; nothing is lost ({restart})."

    # -- tasks over which workers died -------------------------------------------------------------------------------

    def redo(self, begun: Flight, death: BaseException) -> Redone:
        """Decide how to redo a task over which a worker died; if it killed before, search for the sample."""
        if begun.suspect is not None:
            trouble = begun.suspect.trouble
            assert trouble is not None
            assert trouble.search is not None
            trouble.search.died()
            return self._search_on(begun.suspect, death)
        trouble = begun.trouble = begun.trouble or Trouble()
        trouble.deaths += 1
        if trouble.deaths < _DEATHS_BEFORE_SEARCH or begun.stays or not self._options.searches:
            return None
        trouble.search = Bisection(0, len(self._samples_of(begun)))
        return self._search_on(begun, death)

    def survived(self, suspect: Flight) -> Redone:
        """Record that a part of a task that kills was made without harm."""
        assert suspect.trouble is not None
        assert suspect.trouble.search is not None
        suspect.trouble.search.survived()
        return self._search_on(suspect, None)

    def _search_on(self, suspect: Flight, death: BaseException | None) -> Redone:
        trouble = suspect.trouble
        assert trouble is not None
        search = trouble.search
        assert search is not None
        trouble.last_death = death or trouble.last_death
        if search.failed:  # each sample can be made: it was an accident, or they are too much together
            trouble.search, trouble.deaths = None, 0
            return None
        if search.found is not None:
            trouble.search = None
            assert trouble.last_death is not None
            return self._found(suspect, search.found, trouble.last_death)
        first, stop = search.probe
        task, draw = suspect.task, suspect.task.draw
        return Task(
            0,
            rows_of(task.indices, first, stop) if self._options.batched else task.indices,
            draw=Draw(draw.key, draw.first + draw.stride * first, draw.stride),
            resume=task.resume,
            skip=tuple(place - first for place in task.skip if first <= place < stop),
        )

    def _samples_of(self, flight: Flight) -> list[object]:
        return as_list(flight.task.indices, batched=self._options.batched and not flight.stays)

    def _decide(self, failure: Failure) -> Verdict:
        policy = self._options.policy
        if policy is None or policy.never_catches:
            return Verdict("raise")
        return policy.decide(failure, self._options.chance())

    def _found(self, suspect: Flight, place: int, death: BaseException) -> Redone:
        """Apply the policy's verdict to a sample that kills."""
        trouble, task = suspect.trouble, suspect.task
        assert trouble is not None
        index = self._samples_of(suspect)[place]
        does = "blocks" if isinstance(death, WorkerTimeout) else "kills"
        origin = origin_text(self._options.dataset, index)
        origin += "," if origin else ""
        error = type(death)(f"Sample {index!r}{origin} {does} every worker that makes it. The last one: {death}")
        known = index_key(index)
        trouble.attempts[known] = trouble.attempts.get(known, 0) + 1
        failure = Failure(index, error, "worker", trouble.attempts[known], suspect.worker)
        try:
            verdict = self._decide(failure)
        except Exception as exc:  # from the user's policy: raised in place of the batch
            if is_interrupt(exc):
                raise
            add_note(exc, f"About sample {index!r}, which {does} its worker (stage: worker).")
            return Result(ResultKind.FAILED, suspect.worker, task.id, exc)
        action, now_s = verdict.action, self._options.wall_s()
        other = None
        if action == "replace":
            other = neighbour_of(index, self._options.dataset, error) if verdict.index is NEIGHBOUR else verdict.index
        if action == "raise" or (action == "replace" and other is None):
            notes = Notes(faults=[Fault.of(failure, "raise", time=now_s)])
            return Result(ResultKind.FAILED, suspect.worker, task.id, error, notes=notes)
        trouble.deaths = _DEATHS_BEFORE_SEARCH - 1  # one more death starts the search for the next sample
        if action == "skip":
            task.skip = (*task.skip, place)
            trouble.faults.append(Fault.of(failure, "skip", time=now_s))
        elif action == "replace":
            task.indices = with_item(task.indices, place, other, batched=self._options.batched)
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
            doing = f"{_DOING}{users_frames(seen.stack)}"
        why_not = "" if seen.is_killed else self._why_not_killed(limits, seen)
        return WorkerTimeout(
            f"DataLoader timed out after {timeout_s} seconds: {who} is still at batch {late.ordinal}{samples}, after "
            f"{max(timeout_s, elapsed_s):.1f} seconds. Raise `timeout`, or look for a sample that blocks (a network "
            f"read without its own timeout is the usual cause).{why_not} {doing}"
        )

    def _why_not_killed(self, limits: Limits, seen: Seen) -> str:
        if limits.kills_stuck and not self.may_restart:
            count = self._options.restarts
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
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_FRAME = re.compile(r'\s*File "(.*)", line')


def users_frames(stacks: str) -> str:
    """Return the frames of a worker's stacks that concern the user.

    For the worker's thread, these are the calls made since it left feedline's machinery, which does not include
    feedline's sources and collate functions. The same applies to other threads, but those that only wait somewhere in
    Python's library are left out.

    Args:
        stacks: in the format of `faulthandler`, the innermost frame first.
    """
    own: list[str] = []
    others: list[str] = []
    for stack in re.split(r"\n(?=Thread |Current thread )", stacks.rstrip()):
        lines = stack.rstrip().splitlines()
        paths = [found[1] if (found := _FRAME.match(line)) else "" for line in lines]
        end = next((number for number, path in enumerate(paths) if path.startswith(_MACHINERY)), len(lines))
        if stack.startswith("Thread "):
            if not all(path.startswith(_LIBRARY) and "site-packages" not in path for path in paths[1:end]):
                others += lines[:end]
        else:
            end += not any(paths[:end])  # the thread is working in the machinery itself
            own += lines[stack.startswith("Current thread ") : end]
    return "\n".join(own + others)
