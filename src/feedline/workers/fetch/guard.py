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
from typing import Any

from feedline.abc.faults import NEIGHBOUR, ErrorPolicy, Failure, Fault, Verdict
from feedline.abc.worker_spec import WorkerSpec
from feedline.randomness.scope import Items, Scope
from feedline.system.failures import add_note, stage_of
from feedline.types import CollateFunction, IndexBlock


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
"""So many attempts that no policy allows another: the iterator of a stream cannot go back."""

Pause = Callable[[float], object]
"""Waits for a number of seconds; may return early, and then returns True if the sample is no longer needed."""


class NothingLeft(Exception):
    """All samples of a batch were skipped."""


@dataclass(frozen=True)
class Failed:
    """Stands in for a sample of a stream that could not be made."""

    reason: Exception
    attempt: int = 1
    """How often it was tried."""
    is_last: bool = False
    """True if no sample follows, whatever the policy is."""


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
        self.begin(())

    def begin(self, skip: Collection[int]) -> None:
        """Begin a task; `skip` are the places of samples that are known to fail."""
        self.skip = skip
        """Places of samples that are not requested."""
        self._begin_again([])

    def _begin_again(self, items: Any) -> None:
        self._items: Any = items
        self.attempts = 1
        """How many times the last failed sample was tried."""
        self.faults: list[Fault] = []
        """The faults of the current task."""

    # -- samples with an index ---

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

        def one(index: object, ask: Callable[[object], object] = how.ask) -> object:
            if self.skip and self._scope.place in self.skip:
                return _LEFT_OUT
            try:
                return ask(index)
            except Exception as exc:
                return self._deal_with(exc, index, ask)

        def several(indices: Any) -> list[object]:
            indices = list(indices)
            first: Fault | None = None
            if not self.skip:
                try:
                    answers: Any = how.ask(indices)  # Any: the dataset's answer, a list
                    return list(answers)
                except Exception as exc:
                    first = self._fault(exc, indices, 2, "retry")
            samples = []
            for self._scope.place, index in enumerate(indices):  # the exception does not show which of them failed
                self._scope.begin_sample_again()
                samples.append(one(index, lambda each: how.ask([each])[0]))  # type: ignore[index]  # a list
            if first is not None and not self.faults:
                self.faults.append(first)
            return samples

        def join(samples: list[Any]) -> object:
            if self.skip or self.faults:
                there = [sample for sample in (samples[0] if together else samples) if sample is not _LEFT_OUT]
                if not there:
                    raise NothingLeft
                samples = [there] if together else there
            return self._join(how.join, samples)

        return replace(how, items=items, ask=several if together else one, join=join)

    def _deal_with(self, exc: Exception, index: object, ask: Callable[[object], object]) -> object:
        """Apply the policy until there is a sample or a batch, it is skipped, or the exception is raised."""
        current, attempt, tried = index, 1, 0
        first: Fault | None = None  # the requested sample is logged, not those tried in its place
        try:
            while True:
                self.attempts = attempt
                verdict = self._decide(exc, current, attempt)
                if verdict.action == "skip":
                    fault = first or self._fault(exc, index, attempt, "skip")
                    self.faults.append(replace(fault, action="skip"))
                    return _LEFT_OUT
                if verdict.action == "replace" and self._scope.place >= 0:  # a batch has no other
                    first = first or self._fault(exc, index, attempt, "replace")
                    tried += 1
                    if tried > _MOST_REPLACEMENTS:
                        add_note(exc, f"{_MOST_REPLACEMENTS} samples that were tried in place of {index!r} failed too.")
                        raise exc
                    other = verdict.index
                    current = neighbour_of(current, self._dataset, exc) if other is NEIGHBOUR else other
                    attempt = 0
                    if current is None:
                        raise exc
                elif verdict.action != "retry" or self._pause(verdict.wait_s):
                    raise exc
                attempt += 1
                self._scope.begin_sample_again()
                try:
                    sample = ask(current)
                except Exception as again:
                    exc = again
                    continue
                retried = self._fault(exc, index, attempt, "retry")
                self.faults.append(retried if first is None else replace(first, replacement=current))
                return sample
        except Exception as raised:
            if tried:
                add_note(raised, f"Raised by sample {current!r}, which was tried in place of {index!r}.")
            raise
        finally:
            del exc  # avoid a reference cycle: its traceback refers to this frame

    def _join(self, join: Callable[[Any], object], samples: Any) -> object:
        """Make the batch; if that fails, the policy may retry it or skip the whole batch."""
        try:
            return join(samples)
        except Exception as exc:
            batch = self._deal_with(exc, self._items, lambda _: join(samples))
        if batch is _LEFT_OUT:
            raise NothingLeft
        return batch

    def _failure(self, exc: Exception, index: object, attempt: int) -> Failure:
        stage = "collate" if self._scope.place < 0 else stage_of(exc, self._dataset)
        index = list(index) if index is self._items else index
        return Failure(index, exc, stage, attempt, self._worker, self._scope.key())

    def _decide(self, exc: Exception, index: object, attempt: int) -> Verdict:
        return self._policy.decide(self._failure(exc, index, attempt), self._chance.random())

    def _fault(self, exc: Exception, index: object, attempt: int, action: str) -> Fault:
        return Fault.of(self._failure(exc, index, attempt), action, time=time.time())

    # -- samples of a stream ---

    def collate(self, collate: CollateFunction, samples: Any, places: Iterable[int]) -> object:
        """Make a batch of samples at these places of a stream, or convert a single sample."""
        self._items = list(places)
        return self._join(collate, samples)

    def tries_again(self, failed: Failed, place: int) -> bool:
        """True if the policy allows another attempt at a sample of a stream; waits first, if it requires a pause."""
        verdict = self._decide(failed.reason, place, failed.attempt)
        return verdict.action == "retry" and not self._pause(verdict.wait_s)

    def note_retry(self, failed: Failed, place: int) -> None:
        """Log that a sample of a stream was made after this failure."""
        self.faults.append(self._fault(failed.reason, place, failed.attempt + 1, "retry"))

    def leaves_out(self, failed: Failed, place: int) -> bool:
        """True if the policy skips a sample of a stream that is not tried again; logs the fault if so."""
        verdict = self._decide(failed.reason, place, failed.attempt)
        if verdict.action == "retry":
            verdict = self._decide(failed.reason, place, _MANY)
        if verdict.action == "skip":
            self.faults.append(self._fault(failed.reason, place, failed.attempt, "skip"))
        return verdict.action == "skip"


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


_LEFT_OUT = object()
"""Stands in for a skipped sample."""
