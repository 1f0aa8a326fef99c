"""What is done when a worker dies: another takes its place and its work, and a sample that kills is found.

A task over which two workers have died is made in halves until one sample is left that kills by itself. What becomes of
that one, the user's policy says, as of any sample that fails.

Workers also die of causes that have nothing to do with their samples: somebody kills them, the system needs memory.
Such a death betrays itself: the batch is made later, with all its samples. So these accidents are counted, and the more
there are, the more workers in a row have to die before a batch is searched, and then over the sample alone before it is
to blame: so many that accidents would do the first once in a hundred times, and the second once in ten thousand.
"""

from __future__ import annotations

import math
import os
import random
import re
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feedline.abc.error_policy import ErrorPolicy
from feedline.errors import PACKAGE, NotPicklable, WorkerError, WorkerRestarted, WorkerStartError, WorkerTimeout
from feedline.failures import add_note, is_interrupt, told_indices
from feedline.fetch.guard import neighbour_of
from feedline.fetch.origins import told_origin
from feedline.indices import index_key
from feedline.loader.batch_indices import as_list, rows_of, with_item
from feedline.loader.isolation import Isolation
from feedline.loader.limits import Limits
from feedline.loader.pending import Pending
from feedline.types import Call, Draw, Notes, Result, ResultKind, Task
from feedline.verdicts import NEIGHBOUR, Failure, Fault, Verdict

if TYPE_CHECKING:
    from feedline.loader.crew import Crew

Answers = list[tuple[Pending | None, Result]]

_MOST_STREAM_DEATHS = 4
"""Workers that may die over the same batch of a stream."""

_MOST_STARTS = 2
"""How often in a row a worker that does not get ready is started again: an exception in `worker_init_fn`, a program
that cannot be imported."""

_MOST_STARTS_KILLED = 9
"""The same for one that is killed by a signal: somebody may be killing workers who cares little how old they are. Ten
in a row that die so young are no coincidence."""

_DOUBT = 1e-4
"""How likely it may be that a sample is blamed for accidents."""

_SUSPICION = 0.2
"""Accidents that are assumed before there were any. A guess: with less, samples are blamed for the first ones; with
more, a sample that kills at the beginning of an epoch takes many workers with it."""

_DOUBT_OF_BATCH = 1e-2
"""How likely it may be that a batch is searched because of accidents. That costs time, and nothing else."""

_DOING = "What it is doing (most recent call first):\n"


@dataclass(frozen=True)
class Care:
    """What is done for workers that die, are stuck or grow."""

    policy: ErrorPolicy | None = None
    """What becomes of a sample that kills its worker."""
    dataset: Any = None
    batched: bool = True
    """False if tasks are single samples."""
    searches: bool = True
    """False if samples cannot be tried one by one, because the dataset would remember it."""
    restarts: int = 0
    """Workers that may be replaced in an epoch."""
    most_bytes: int | None = None
    """Memory of its own that a worker may come to have before it is replaced."""


class Rescue:
    """Sees to the workers of a crew that died."""

    def __init__(self, crew: Crew, care: Care) -> None:
        self._crew: Crew = weakref.proxy(crew)  # which refers to this one: no cycle for the garbage collector
        self._care = care
        self._left = care.restarts
        self._starts_failed: dict[int, int] = {}
        self._chance = random.Random()
        self._accidents = 0
        """Deaths over batches that were made later with all their samples."""
        self.stuck: dict[int, WorkerError] = {}
        """Workers that were killed because they did not answer, and what is to be said of it."""
        self._shown: set[str] = set()
        """Stacks of such workers that warnings have shown."""

    def begin_epoch(self) -> None:
        """Have the whole budget again."""
        self._left = self._care.restarts
        self._starts_failed.clear()

    def made(self, pending: Pending) -> None:
        """Note that a task was done over which workers had died, with nobody to blame: these were accidents."""
        self._accidents += pending.unexplained
        pending.unexplained = 0

    def _enough(self, suspect: Pending, doubt: float = _DOUBT) -> int:
        """How many workers have to die over the same samples of a task before that is no accident."""
        # Deaths over other tasks may turn out to be accidents as well.
        others = sum(1 for task in self._crew.roster.in_doubt() if task is not suspect)
        doubtful = self._accidents + others + _SUSPICION
        share = doubtful / (doubtful + self._crew.roster.answers + 1)
        return max(2, math.ceil(math.log(doubt) / math.log(share)))

    @property
    def may_restart(self) -> bool:
        """True while another worker may be replaced."""
        return self._left > 0

    def see_to_stuck(self, late: Pending | None, limits: Limits) -> None:
        """Kill the worker that has been at a task for too long, so that it is replaced.

        Raises:
            WorkerTimeout: that cannot be done, or is not wanted, or nobody has anything to do.
        """
        if late is None:
            raise WorkerTimeout(f"DataLoader timed out after {limits.timeout_s} seconds.")
        if not (limits.kills_stuck and self.may_restart and self._kill(late, limits.timeout_s)):
            raise self._told_of_stuck(late, limits.timeout_s, self._why_not_killed(late, limits))

    def _why_not_killed(self, late: Pending, limits: Limits) -> str:
        if limits.kills_stuck and not self.may_restart:
            return (
                f" It is not replaced: {self._care.restarts} workers were in this epoch, and restarts= allows no more."
            )
        if limits.kills_stuck:
            return " It is not replaced: this engine cannot end a worker that is busy, as engine='process' can."
        is_process = self._crew.engine.pid(late.worker) is not None
        how = "restarts=" if is_process else "engine='process' and restarts="
        return f" With {how}, such as restarts=10, it would be replaced, and its batch made again."

    def _kill(self, late: Pending, timeout_s: float) -> bool:
        told = self._told_of_stuck(late, timeout_s)  # first: afterwards it does nothing that could be told
        if not self._crew.engine.kill(late.worker):
            return False
        self.stuck[late.worker] = told
        return True

    def _told_of_stuck(self, late: Pending, timeout_s: float, why_not_killed: str = "") -> WorkerTimeout:
        """Return what to say about a worker that does not answer: its task, and what it is doing."""
        crew = self._crew
        pid = crew.engine.pid(late.worker)
        who = f"worker {late.worker}" + ("" if pid is None else f" (pid {pid})")
        since_s = crew.workers[late.worker].since_s
        elapsed_s = max(timeout_s, time.monotonic() - since_s)  # a worker that is starting has more time
        samples = "" if late.stays else f" (samples {told_indices(self.samples_of(late))})"
        samples += "" if late.owner is not None else " of an iteration that was left"
        stack = crew.engine.stack(late.worker)
        doing = "What it is doing could not be had." if stack is None else f"{_DOING}{users_frames(stack)}"
        return WorkerTimeout(
            f"DataLoader timed out after {timeout_s} seconds: {who} is still at batch {late.ordinal}{samples}, since "
            f"{elapsed_s:.1f} seconds. Raise `timeout`, or look for a sample that blocks (a network read without its "
            f"own time-out is the usual cause).{why_not_killed} {doing}"
        )

    def see_to(self, result: Result) -> Answers:
        """Replace a worker that died; returns the answers that come of it: a death, if there is no going on."""
        crew, worker = self._crew, result.worker
        death: BaseException = self.stuck.pop(worker, result.payload)
        is_ready = isinstance(death, WorkerError)  # otherwise it is the exception that kept it from getting ready
        failed = not is_ready or not getattr(death, "was_ready", True)
        self._starts_failed[worker] = self._starts_failed.get(worker, 0) + 1 if failed else 0
        begun, waiting = crew.roster.take_back(worker)
        if begun is not None and not is_ready:
            waiting.insert(0, begun)
            begun = None
        stays = begun is not None and (begun.stays or not self._care.searches)
        stays_stuck = stays and begun is not None and begun.deaths >= max(_MOST_STREAM_DEATHS, self._enough(begun)) - 1
        if stays_stuck and begun is not None:
            death.args = (
                f"{death} It is worker number {begun.deaths + 1} that died at this place, and the samples of a "
                "stream, or of a dataset that keeps a state, cannot be tried one by one.",
            )
        starts = self._starts_failed[worker]
        never_starts = starts > (_MOST_STARTS_KILLED if getattr(death, "was_killed", False) else _MOST_STARTS)
        if never_starts:
            self._tell_of_starts(death, worker, starts)
        is_final = isinstance(death, (WorkerStartError, NotPicklable))  # another would end alike
        if self._left <= 0 or stays_stuck or never_starts or is_final:
            return self._end(worker, death, begun, waiting)
        self._left -= 1
        crew.counters.restarts += 1
        trouble = crew.start_another(worker)
        if trouble is not None:
            trouble.__cause__ = death
            return self._end(worker, trouble, begun, waiting)
        crew.say(self._told(death, worker, begun), WorkerRestarted)
        answers: Answers = []
        if begun is not None:
            answers = self._redo(begun, death)
        crew.give_again(worker, waiting)
        return answers

    def _tell_of_starts(self, death: BaseException, worker: int, count: int) -> None:
        """Add to the last words of a worker that it is one of several that did not get ready."""
        told = (
            f"Worker {worker} has ended {count} times in a row before it was ready to work, so another would end as "
            f"well (restarts={self._care.restarts} allows {self._left} more, which would not help). Look at what runs "
            "that early: worker_init_fn, unpickling the dataset, importing the program, and a limit on memory."
        )
        if isinstance(death, WorkerError):
            death.args = (f"{death} {told}",)
        else:
            add_note(death, told)

    def _end(self, worker: int, last: BaseException, begun: Pending | None, waiting: list[Pending]) -> Answers:
        """Give up: there is no going on after this death."""
        if self._left <= 0 < self._care.restarts and isinstance(last, WorkerError):
            last.args = (
                f"{last} It is one too many: {self._care.restarts} workers were replaced in this epoch, and "
                f"restarts={self._care.restarts} allows no more. Samples that were found to kill are in the loader's "
                "`faults`, and are not tried again.",
            )
        killers: list[Fault] = []
        for pending in waiting if begun is None else [begun, *waiting]:
            killers += (pending.suspect or pending).faults
            self._crew.forget(pending)
        notes = Notes(faults=killers) if killers else None
        return [(None, Result(ResultKind.DIED, worker, -1, last, notes=notes))]

    def _told(self, death: BaseException, worker: int, begun: Pending | None) -> str:
        text = (
            str(death)
            if isinstance(death, WorkerError)
            else (f"Worker {worker} could not get ready: {type(death).__name__}: {death}.")
        )
        task = None if begun is None else (begun.suspect or begun)
        what = ""
        if task is not None and task.owner is not None and type(task.task.indices) is not Call:
            samples = "" if task.stays else f" (samples {told_indices(self.samples_of(task))})"
            doing = "making" if begun is None or begun.suspect is None else "looking for the sample that kills in"
            what = f" It was {doing} batch {task.ordinal}{samples}."
        restart = f"restart {self._care.restarts - self._left} of {self._care.restarts} in this epoch"
        if isinstance(death, WorkerTimeout):  # it ends with a stack, which the first warning shows
            start, _, frames = text.partition(_DOING)
            if frames in self._shown:
                text = f"{start}It is stuck where one was before:\n{frames.splitlines()[0]}"
            elif frames:
                self._shown.add(frames)
            text += "\n"
        return f"{text}{what} Another worker has taken its place and its work; nothing is lost ({restart})."

    def _redo(self, begun: Pending, death: BaseException) -> Answers:
        """Have the task done again over which a worker died; if it killed before, find out which sample does it."""
        crew = self._crew
        if (begun.suspect or begun).owner is None:  # of an epoch that was left
            crew.forget(begun)
            return []
        if begun.suspect is not None:
            suspect = begun.suspect
            assert suspect.search is not None
            suspect.unexplained += 1
            suspect.search.died()
            return self._search_on(suspect, death)
        begun.deaths += 1
        begun.unexplained += 1
        # A single sample cannot be searched, so it has to convince at once.
        enough = self._enough(begun, _DOUBT_OF_BATCH * (1 if self._care.batched else _DOUBT))
        if begun.deaths < enough or begun.stays or not self._care.searches:
            crew.give_again(begun.worker, [begun])
            return []
        if not self._care.batched:
            return self._found(begun, 0, death)
        begun.search = Isolation(0, len(self.samples_of(begun)))
        return self._search_on(begun, death)

    def samples_of(self, pending: Pending) -> list[Any]:
        """Return the samples of a task."""
        return as_list(pending.task.indices, batched=self._care.batched and not pending.stays)

    def survived(self, suspect: Pending) -> Answers:
        """Note that a part of a task that kills was made without harm."""
        if suspect.owner is None:
            self._crew.forget(suspect)
            return []
        assert suspect.search is not None
        suspect.search.survived()
        return self._search_on(suspect, None)

    def _search_on(self, suspect: Pending, death: BaseException | None) -> Answers:
        search = suspect.search
        assert search is not None
        suspect.last_death = death or suspect.last_death
        search.enough = self._enough(suspect)
        if search.failed:  # each of its samples can be made: it was an accident, or they are too much together
            suspect.search, suspect.deaths = None, 0
            self._crew.give_again(suspect.worker, [suspect])
            return []
        if search.found is not None:
            suspect.search = None
            assert suspect.last_death is not None
            return self._found(suspect, search.found, suspect.last_death)
        first, stop = search.probe
        task, draw = suspect.task, suspect.task.draw
        part = Task(
            0,
            rows_of(task.indices, first, stop),
            draw=Draw(draw.key, draw.first + draw.stride * first, draw.stride),
            resume=task.resume,
            skip=tuple(place - first for place in task.skip if first <= place < stop),
        )
        self._crew.probe(suspect, part)
        return []

    def _decide(self, failure: Failure) -> Verdict:
        policy = self._care.policy
        if policy is None or policy.never_catches:
            return Verdict("raise")
        return policy.decide(failure, self._chance.random())

    def _found(self, suspect: Pending, place: int, death: BaseException) -> Answers:
        """Do with a sample that kills what the policy says."""
        crew = self._crew
        index = self.samples_of(suspect)[place]
        does = "blocks" if isinstance(death, WorkerTimeout) else "kills"
        origin = told_origin(self._care.dataset, index)
        origin += "," if origin else ""
        error = type(death)(f"Sample {index!r}{origin} {does} every worker that makes it. The last one: {death}")
        suspect.unexplained = 0
        known = index_key(index)
        suspect.attempts[known] = suspect.attempts.get(known, 0) + 1
        failure = Failure(index, error, "worker", suspect.attempts[known], suspect.worker)
        try:
            verdict = self._decide(failure)
        except Exception as exc:  # of the user's policy: it is raised in place of the batch
            if is_interrupt(exc):
                raise
            add_note(exc, f"About sample {index!r}, which {does} its worker (stage: worker).")
            return [crew.answer(suspect, Result(ResultKind.FAILED, suspect.worker, suspect.task.id, exc))]
        action = verdict.action
        other = None
        if action == "replace":
            other = neighbour_of(index, self._care.dataset, error) if verdict.index is NEIGHBOUR else verdict.index
        if action == "raise" or (action == "replace" and other is None):
            notes = Notes(faults=[Fault.of(failure, "raise", time=time.time())])
            result = Result(ResultKind.FAILED, suspect.worker, suspect.task.id, error, notes=notes)
            return [crew.answer(suspect, result)]
        # One more, and the next of a batch is looked for; nobody is convicted after one death alone.
        suspect.deaths = self._enough(suspect, _DOUBT_OF_BATCH) - 1 if self._care.batched else 0
        if action == "skip":
            suspect.task.skip = (*suspect.task.skip, place)
            suspect.faults.append(Fault.of(failure, "skip", time=time.time()))
        elif action == "replace":
            suspect.task.indices = with_item(suspect.task.indices, place, other, batched=self._care.batched)
            suspect.faults.append(Fault.of(failure, "replace", time=time.time(), replacement=other))
        crew.give_again(suspect.worker, [suspect])
        return []


_MACHINERY = tuple(os.path.join(PACKAGE, folder, "") for folder in ("engines", "fetch", "loader"))
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_FRAME = re.compile(r'\s*File "(.*)", line')


def users_frames(stacks: str) -> str:
    """Return what of a worker's stacks is the user's affair.

    That is what the worker's thread has called since it left feedline's machinery; the sources and collate functions of
    feedline are not part of that. Of other threads it is the same, unless they only wait somewhere in Python's library.

    Args:
        stacks: as `faulthandler` writes them, the innermost frame first.
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
            end += not any(paths[:end])  # one that is at work in the machinery itself
            own += lines[stack.startswith("Current thread ") : end]
    return "\n".join(own + others)
