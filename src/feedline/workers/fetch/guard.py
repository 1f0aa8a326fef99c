"""How samples are asked for, and what a worker does about those that fail: leave out, try again, take others.

The policy says which. A guard stands between a fetcher and the dataset. It hands the fetcher a mark in place of a
sample that is left out, and takes the marks away before the batch is made.
"""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from feedline.abc.error_policy import ErrorPolicy
from feedline.abc.faults import NEIGHBOUR, Failure, Fault, Verdict
from feedline.abc.worker_spec import WorkerSpec
from feedline.randomness.scope import Scope
from feedline.system.failures import add_note, stage_of
from feedline.types import IndexBlock


@dataclass(frozen=True)
class Asking:
    """One question per sample, or one for all of them."""

    ask: Callable[[Any], Any]
    """Returns what the dataset has for an item."""
    items: Callable[[Any], list[Any]]
    """Returns what to ask for, given what the plan says: its indices, or all of them as one item."""
    join: Callable[[list[Any]], Any]
    """Makes the batch of the answers."""
    join_draws: bool = True
    """False if making the batch is known to draw no random numbers."""

    @classmethod
    def of(cls, ask: Callable[[Any], Any], collate: Callable[[Any], Any], spec: WorkerSpec, together: bool) -> Asking:
        """Return how to ask, with one question for all samples of a batch if `together`."""
        draws = not spec.framework.is_default_collate(spec.collate)
        if spec.batched and not together:
            return cls(ask, listed, collate, draws)
        return cls(ask, lambda indices: [plain(indices)], lambda samples: collate(samples[0]), draws)


def plain(indices: Any) -> Any:
    """Turn feedline's own index blocks into the list of ints that datasets expect; leave all else as it is."""
    return indices.array.tolist() if type(indices) is IndexBlock else indices


def listed(indices: Any) -> Any:
    """Return indices that are asked for one by one."""
    if type(indices) is IndexBlock:
        return indices.array.tolist()
    return indices if type(indices) in (list, tuple) else list(indices)


_MOST_REPLACEMENTS = 16
"""Samples that are tried in place of one. More failures in a row mean that something else is wrong."""

_MANY = 1 << 30
"""Attempts, so many that no policy wants another: a stream that several workers read goes on only."""

Pause = Callable[[float], Any]
"""Waits for so many seconds; may return earlier, and then True, if nobody waits for the sample any more."""


class NothingLeft(Exception):
    """All samples of a batch were left out."""


class Guard:
    """Asks for samples and does what the policy says when one fails.

    Args:
        policy: says what becomes of a sample.
        scope: knows which sample of the batch it is.
        dataset: whose samples they are.
        worker: this worker; None in the training process itself.
        pause: waits before another attempt.
    """

    def __init__(
        self, policy: ErrorPolicy, scope: Scope, dataset: Any, *, worker: int | None, pause: Pause = time.sleep
    ) -> None:
        self._policy = policy
        self._scope = scope
        self._dataset = dataset
        self._worker = worker
        self._pause = pause
        self._chance = random.Random()  # its own: those of the process belong to the user
        self._skip: Collection[int] = ()
        self._items: list[Any] = []
        self._has_left_out = False
        self.faults: list[Fault] = []
        """What failed in the current task."""
        self.attempts = 1
        """How often the last sample that failed was tried."""

    def begin(self, skip: Collection[int]) -> None:
        """Begin a task; `skip` are places whose samples are known to fail."""
        self._skip = skip
        self._begin_again([])

    @property
    def is_clear(self) -> bool:
        """True if all samples of the task are to be asked for."""
        return not self._skip

    def knows(self, place: int) -> bool:
        """True if the sample of a place is not asked for, because it is known to fail."""
        return place in self._skip

    def _begin_again(self, items: list[Any]) -> None:
        self._items = items
        self._has_left_out = False
        self.attempts = 1
        self.faults = []

    def guarded(self, how: Asking, *, together: bool) -> Asking:
        """Return how to ask for samples so that failures are dealt with.

        Args:
            how: how they would be asked for otherwise.
            together: True if one question is for all samples of a batch.
        """

        def items(indices: Any) -> list[Any]:
            asked = how.items(indices)
            self._begin_again(asked[0] if together else asked)
            return asked

        ask = self._asking_together(how.ask) if together else self._asking_each(how.ask)

        def join(samples: list[Any]) -> Any:
            if self._has_left_out:
                samples = list(samples[0]) if together else samples
                there = [sample for sample in samples if sample is not _LEFT_OUT]
                if not there:
                    raise NothingLeft
                samples = [there] if together else there
            return self._join(how.join, samples)

        return replace(how, items=items, ask=ask, join=join)

    def each(self, dataset: Any, how: Asking) -> Callable[[Any], Any]:
        """Return a fetcher that asks for samples one by one, at next to no cost while none fails."""
        guarded = self.guarded(how, together=False)

        def fetch(indices: Any) -> Any:
            items = guarded.items(indices)
            samples: list[Any] = []
            if not self._skip:
                add = samples.append
                try:
                    for item in self._scope.following(items):
                        add(dataset[item])
                except Exception as exc:
                    place = len(samples)
                    self._scope.place = place
                    add(self._deal_with(exc, items[place], how.ask))
            for self._scope.place in range(len(samples), len(items)):
                samples.append(guarded.ask(items[self._scope.place]))
            self._scope.collate()
            return guarded.join(samples)

        return fetch

    def _asking_each(self, ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def asked(index: Any) -> Any:
            if self._skip and self._scope.place in self._skip:
                return self._leave_out()
            try:
                return ask(index)
            except Exception as exc:
                return self._deal_with(exc, index, ask)

        return asked

    def _asking_together(self, together: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def one(index: Any) -> Any:
            return together([index])[0]

        def asked(indices: Any) -> list[Any]:
            indices = list(indices)
            if not self._skip:
                try:
                    return list(together(indices))
                except Exception as exc:
                    first = self._fault(self._failure(exc, indices, 2), "retry")
            else:
                first = None
            one_by_one = self._asking_each(one)  # nobody says which of them it was
            samples = []
            for self._scope.place, index in enumerate(indices):
                self._scope.begin_sample_again()
                samples.append(one_by_one(index))
            if first is not None and not self.faults:
                self.faults.append(first)
            return samples

        return asked

    def _leave_out(self) -> Any:
        self._has_left_out = True
        return _LEFT_OUT

    def _deal_with(self, exc: Exception, index: Any, ask: Callable[[Any], Any]) -> Any:
        """Do what the policy says about a sample until there is one, or it is left out, or the exception is raised."""
        try:
            current, attempt, replacements = index, 1, 0
            first: Fault | None = None
            while True:
                self.attempts = attempt
                verdict = self._decide(self._failure(exc, current, attempt))
                if verdict.action == "skip":
                    fault = first or self._fault(self._failure(exc, index, attempt), "skip")
                    self.faults.append(replace(fault, action="skip"))
                    return self._leave_out()
                if verdict.action == "replace":
                    first = first or self._fault(self._failure(exc, index, attempt), "replace")
                    replacements += 1
                    if replacements > _MOST_REPLACEMENTS:
                        add_note(
                            exc, f"{_MOST_REPLACEMENTS} samples that were tried instead of {index!r} failed as well."
                        )
                        raise exc
                    current, attempt = self._other(current, verdict, exc), 0
                elif verdict.action == "retry":
                    if self._pause(verdict.wait_s):
                        raise exc
                else:
                    raise exc
                attempt += 1
                self._scope.begin_sample_again()
                try:
                    sample = ask(current)
                except Exception as again:
                    exc = again
                    continue
                if first is None:
                    self._note(self._failure(exc, index, attempt), "retry")
                else:  # the log is about the sample that was wanted, not about those that were tried instead
                    self.faults.append(replace(first, replacement=current))
                return sample
        except Exception as raised:
            if replacements:
                add_note(raised, f"It is of sample {current!r}, which was tried instead of {index!r}.")
            raise
        finally:
            del exc  # its traceback refers to this frame: no cycle for the garbage collector

    def _other(self, index: Any, verdict: Verdict, exc: Exception) -> Any:
        """Return the sample to take in place of another."""
        other = neighbour_of(index, self._dataset, exc) if verdict.index is NEIGHBOUR else verdict.index
        if other is None:
            raise exc
        return other

    def _failure(self, exc: Exception, index: Any, attempt: int) -> Failure:
        stage = "collate" if self._scope.place < 0 else stage_of(exc, self._dataset)
        index = list(index) if index is self._items else index
        return Failure(index, exc, stage, attempt, self._worker, self._scope.key())

    def _decide(self, failure: Failure) -> Verdict:
        return self._policy.decide(failure, self._chance.random())

    def _note(self, failure: Failure, action: str) -> None:
        self.faults.append(self._fault(failure, action))

    def _fault(self, failure: Failure, action: str) -> Fault:
        return Fault.of(failure, action, time=time.time())

    def _join(self, join: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
        """Make the batch; if that fails, the policy may want to try again or to leave all of it out."""
        attempt = 1
        while True:
            try:
                batch = join(samples)
            except Exception as exc:
                fault = self._fault(self._failure(exc, self._items, attempt), "retry")
                verdict = self._decide(self._failure(exc, self._items, attempt))
                if verdict.action == "skip":
                    self.faults.append(replace(fault, action="skip"))
                    raise NothingLeft from None
                if verdict.action != "retry" or self._pause(verdict.wait_s):
                    raise
                attempt += 1
                self._scope.begin_sample_again()
                continue
            if attempt > 1:
                self.faults.append(replace(fault, attempt=attempt))
            return batch

    def collate(self, collate: Callable[[Any], Any], samples: Any, places: Iterable[int]) -> Any:
        """Make a batch of samples of a stream, or the one sample that is to be delivered.

        Args:
            collate: makes the batch.
            samples: what of.
            places: where in the stream they are.
        """
        self._items = list(places)
        return self._join(collate, samples)

    def tries_again(self, exc: Exception, attempt: int) -> bool:
        """Say whether the policy wants another attempt at a sample of a stream, and wait for as long as it says."""
        verdict = self._decide(self._failure(exc, 0, attempt))
        return verdict.action == "retry" and not self._pause(verdict.wait_s)

    def note_retry(self, exc: Exception, place: int, attempt: int) -> None:
        """Note that a sample of a stream was made at this attempt, after it had failed."""
        self._note(self._failure(exc, place, attempt), "retry")

    def leaves_out(self, exc: Exception, place: int) -> bool:
        """Say whether a sample of a stream that cannot be read again may be left out, and note it if so."""
        failure = self._failure(exc, place, _MANY)
        if self._decide(failure).action != "skip":
            return False
        self._note(replace(failure, attempt=1), "skip")
        return True

    def read(self, stream: Readable) -> Any:
        """Return the next sample of a stream that the policy lets through; raises StopIteration at its end."""
        attempt = 1
        failure: Failure | None = None
        try:
            while True:
                try:
                    sample = stream.read()
                except StopIteration:
                    if failure is not None:  # it was asked again, and had nothing more to say
                        self._close(failure)
                    raise
                except Exception as exc:
                    if stream.has_broken_off:
                        raise
                    failure = self._failure(exc, stream.place - 1, attempt)
                    verdict = self._decide(failure)
                    if verdict.action == "skip":
                        self._note(failure, "skip")
                        attempt, failure = 1, None
                        continue
                    if verdict.action != "retry" or self._pause(verdict.wait_s):
                        raise
                    if not stream.try_again():
                        self._close(failure)
                        attempt, failure = 1, None
                        continue
                    attempt += 1
                    continue
                if failure is not None:
                    self._note(replace(failure, attempt=attempt), "retry")
                return sample
        finally:
            del failure  # its traceback refers to this frame: no cycle for the garbage collector

    def _close(self, failure: Failure) -> None:
        """Do with a sample that cannot be tried again what the policy says in the end."""
        try:
            if self._decide(replace(failure, attempt=_MANY)).action != "skip":
                raise failure.error
            self._note(failure, "skip")
        finally:
            del failure  # its traceback refers to this frame: no cycle for the garbage collector


class Readable(Protocol):
    """A stream, as far as a guard must know it."""

    place: int
    """Samples read so far."""
    has_broken_off: bool
    """True if there are no more samples after the last exception."""

    def read(self) -> Any:
        """Return the next sample."""

    def try_again(self) -> bool:
        """Let the next sample be the one that raised an exception; False if that cannot be done."""


def neighbour_of(index: Any, dataset: Any, exc: BaseException) -> int | None:
    """Return the index after another one; None if there is none, which a note to the exception then explains."""
    try:
        return (operator.index(index) + 1) % len(dataset)
    except TypeError:
        add_note(
            exc,
            f"Sample {index!r} has no neighbour that could take its place: its index is not a number, or the dataset "
            "has no length. Say what to take: on_error=feedline.faults.Replace(by=function_of_the_index).",
        )
        return None


class _LeftOut:
    """Stands in for a sample that was left out."""


_LEFT_OUT = _LeftOut()
