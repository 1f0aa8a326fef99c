"""How samples are requested, and how a worker handles those that fail: skip, retry or replace them.

The error policy decides. A guard sits between a fetcher and the dataset. It returns a marker in place of a skipped
sample, and removes the markers before the batch is collated.
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
from feedline.randomness.scope import Items, Scope
from feedline.system.failures import add_note, stage_of
from feedline.types import CollateFunction, IndexBlock, MapStyle


@dataclass(frozen=True)
class Asking:
    """How to request the samples of a batch: one by one, or all in one call."""

    ask: Callable[[object], object]
    """Returns the dataset's answer for an item."""
    items: Callable[[Any], Items]
    """Returns the items to request for an entry of the plan: its indices, or all of them as one item."""
    join: Callable[[list[Any]], object]
    """Makes the batch from the answers."""
    join_draws: bool = True
    """False if making the batch is known to draw no random numbers."""

    @classmethod
    def of(cls, ask: Callable[[object], object], collate: CollateFunction, spec: WorkerSpec, together: bool) -> Asking:
        """Return how to request samples: in one call per batch if `together`, otherwise one by one."""
        draws = not spec.framework.is_default_collate(spec.collate)
        if spec.batched and not together:
            return cls(ask, listed, collate, draws)
        return cls(ask, lambda indices: [plain(indices)], lambda samples: collate(samples[0]), draws)


def plain(indices: object) -> object:
    """Turn feedline's own index blocks into the list of ints that datasets expect; leave all else as it is."""
    return indices.array.tolist() if type(indices) is IndexBlock else indices


def listed(indices: Any) -> Any:
    """Return indices to be requested one by one."""
    if type(indices) is IndexBlock:
        return indices.array.tolist()
    return indices if type(indices) in (list, tuple) else list(indices)


_MOST_REPLACEMENTS = 16
"""Maximum number of samples to try in place of one. More failures in a row mean that something else is wrong."""

_MANY = 1 << 30
"""So many attempts that no policy allows another: a stream that several workers read cannot go back."""

Pause = Callable[[float], object]
"""Waits for a number of seconds; may return early, and then returns True if the sample is no longer needed."""


class NothingLeft(Exception):
    """All samples of a batch were skipped."""


class Guard:
    """Requests samples, and applies the policy when one fails.

    Args:
        policy: decides about failed samples.
        scope: knows the place of the current sample in its batch.
        dataset: the dataset.
        worker: this worker; None in the training process itself.
        pause: waits before another attempt.
    """

    def __init__(
        self, policy: ErrorPolicy, scope: Scope, dataset: object, *, worker: int | None, pause: Pause = time.sleep
    ) -> None:
        self._policy = policy
        self._scope = scope
        self._dataset = dataset
        self._worker = worker
        self._pause = pause
        self._chance = random.Random()  # its own: the process-wide generators belong to the user
        self._skip: Collection[int] = ()
        self._items: list[object] = []
        self._has_left_out = False
        self.faults: list[Fault] = []
        """The faults of the current task."""
        self.attempts = 1
        """How many times the last failed sample was tried."""

    def begin(self, skip: Collection[int]) -> None:
        """Begin a task; `skip` are the places of samples that are known to fail."""
        self._skip = skip
        self._begin_again([])

    @property
    def is_clear(self) -> bool:
        """True if all samples of the task are to be requested."""
        return not self._skip

    def knows(self, place: int) -> bool:
        """True if the sample at a place is not requested, because it is known to fail."""
        return place in self._skip

    def _begin_again(self, items: Any) -> None:
        self._items = items
        self._has_left_out = False
        self.attempts = 1
        self.faults = []

    def guarded(self, how: Asking, *, together: bool) -> Asking:
        """Return how to request samples so that failures are handled.

        Args:
            how: how to request them otherwise.
            together: True if one call requests all samples of a batch.
        """

        def items(indices: object) -> Items:
            asked = how.items(indices)
            self._begin_again(asked[0] if together else asked)
            return asked

        ask = self._asking_together(how.ask) if together else self._asking_each(how.ask)

        def join(samples: list[Any]) -> object:
            if self._has_left_out:
                samples = list(samples[0]) if together else samples
                there = [sample for sample in samples if sample is not _LEFT_OUT]
                if not there:
                    raise NothingLeft
                samples = [there] if together else there
            return self._join(how.join, samples)

        return replace(how, items=items, ask=ask, join=join)

    def each(self, dataset: MapStyle[object], how: Asking) -> Callable[[object], object]:
        """Return a fetcher that requests samples one by one, at next to no cost while none fails."""
        guarded = self.guarded(how, together=False)

        def fetch(indices: object) -> object:
            items = guarded.items(indices)
            samples: list[object] = []
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

    def _asking_each(self, ask: Callable[[object], object]) -> Callable[[object], object]:
        def asked(index: object) -> object:
            if self._skip and self._scope.place in self._skip:
                return self._leave_out()
            try:
                return ask(index)
            except Exception as exc:
                return self._deal_with(exc, index, ask)

        return asked

    def _asking_together(self, together: Callable[[object], Any]) -> Callable[[object], object]:
        def one(index: object) -> object:
            return together([index])[0]

        def asked(indices: Any) -> list[object]:
            indices = list(indices)
            if not self._skip:
                try:
                    return list(together(indices))
                except Exception as exc:
                    first = self._fault(self._failure(exc, indices, 2), "retry")
            else:
                first = None
            one_by_one = self._asking_each(one)  # the exception does not show which of them failed
            samples = []
            for self._scope.place, index in enumerate(indices):
                self._scope.begin_sample_again()
                samples.append(one_by_one(index))
            if first is not None and not self.faults:
                self.faults.append(first)
            return samples

        return asked

    def _leave_out(self) -> object:
        self._has_left_out = True
        return _LEFT_OUT

    def _deal_with(self, exc: Exception, index: object, ask: Callable[[object], object]) -> object:
        """Apply the policy until there is a sample, the sample is skipped, or the exception is raised."""
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
                            exc, f"{_MOST_REPLACEMENTS} samples that were tried in place of {index!r} failed as well."
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
                else:  # log the requested sample, not those tried in its place
                    self.faults.append(replace(first, replacement=current))
                return sample
        except Exception as raised:
            if replacements:
                add_note(raised, f"Raised by sample {current!r}, which was tried in place of {index!r}.")
            raise
        finally:
            del exc  # avoid a reference cycle: its traceback refers to this frame

    def _other(self, index: object, verdict: Verdict, exc: Exception) -> object:
        """Return the replacement for a sample."""
        other = neighbour_of(index, self._dataset, exc) if verdict.index is NEIGHBOUR else verdict.index
        if other is None:
            raise exc
        return other

    def _failure(self, exc: Exception, index: object, attempt: int) -> Failure:
        stage = "collate" if self._scope.place < 0 else stage_of(exc, self._dataset)
        index = list(index) if index is self._items else index
        return Failure(index, exc, stage, attempt, self._worker, self._scope.key())

    def _decide(self, failure: Failure) -> Verdict:
        return self._policy.decide(failure, self._chance.random())

    def _note(self, failure: Failure, action: str) -> None:
        self.faults.append(self._fault(failure, action))

    def _fault(self, failure: Failure, action: str) -> Fault:
        return Fault.of(failure, action, time=time.time())

    def _join(self, join: Callable[[list[object]], object], samples: list[object]) -> object:
        """Make the batch; if that fails, the policy may retry it or skip the whole batch."""
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

    def collate(self, collate: CollateFunction, samples: Any, places: Iterable[int]) -> object:
        """Make a batch of samples from a stream, or convert a single sample.

        Args:
            collate: makes the batch.
            samples: the samples.
            places: their places in the stream.
        """
        self._items = list(places)
        return self._join(collate, samples)

    def tries_again(self, exc: Exception, attempt: int) -> bool:
        """True if the policy allows another attempt at a sample of a stream; waits first, if it requires a pause."""
        verdict = self._decide(self._failure(exc, 0, attempt))
        return verdict.action == "retry" and not self._pause(verdict.wait_s)

    def note_retry(self, exc: Exception, place: int, attempt: int) -> None:
        """Log that this attempt at a sample of a stream succeeded, after others had failed."""
        self._note(self._failure(exc, place, attempt), "retry")

    def leaves_out(self, exc: Exception, place: int) -> bool:
        """True if the policy skips a sample of a stream that cannot be read again; logs the fault if so."""
        failure = self._failure(exc, place, _MANY)
        if self._decide(failure).action != "skip":
            return False
        self._note(replace(failure, attempt=1), "skip")
        return True

    def read(self, stream: Readable) -> object:
        """Return the next sample of a stream that the policy does not skip; raises StopIteration at its end."""
        attempt = 1
        failure: Failure | None = None
        try:
            while True:
                try:
                    sample = stream.read()
                except StopIteration:
                    if failure is not None:  # the retry found the end of the stream
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
            del failure  # avoid a reference cycle: its traceback refers to this frame

    def _close(self, failure: Failure) -> None:
        """Apply the policy's final decision to a sample that cannot be retried."""
        try:
            if self._decide(replace(failure, attempt=_MANY)).action != "skip":
                raise failure.error
            self._note(failure, "skip")
        finally:
            del failure  # avoid a reference cycle: its traceback refers to this frame


class Readable(Protocol):
    """The part of a stream that a guard needs."""

    place: int
    """Samples read so far."""
    has_broken_off: bool
    """True if no sample follows the last exception."""

    def read(self) -> object:
        """Return the next sample."""

    def try_again(self) -> bool:
        """Make the next `read` retry the sample that raised an exception; False if that is impossible."""


def neighbour_of(index: Any, dataset: Any, exc: BaseException) -> int | None:
    """Return the next index; None if there is none, which a note on the exception then explains."""
    try:
        return (operator.index(index) + 1) % len(dataset)
    except TypeError:
        add_note(
            exc,
            f"Sample {index!r} has no neighbour to replace it: its index is not a number, or the dataset has no "
            "length. Choose the replacement yourself: on_error=feedline.faults.Replace(by=function_of_the_index).",
        )
        return None


class _LeftOut:
    """Stands in for a skipped sample."""


_LEFT_OUT = _LeftOut()
