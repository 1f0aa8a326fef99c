"""Streams: the samples of an iterable dataset, one after the other."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import math
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from feedline.abc.source import Acknowledged, Repeatable, StreamSource
from feedline.abc.stateful import check_restorable, is_stateful, outlives_epoch, restore_end
from feedline.errors import BadState
from feedline.memory.sharing.records import NotARecord, encode
from feedline.randomness.global_states import UNCHANGED, seed_globals
from feedline.randomness.scope import Scope
from feedline.system.failures import broke_generator, twin_of
from feedline.types import Position
from feedline.workers.fetch.guard import Failed, Guard

_CONTAINERS: list[Iterable[object]] = [range(1), range(1 << 70), [], (), set(), {}, {}.values(), {}.items(), "", b""]
_PLAIN = frozenset(type(iter(container)) for container in _CONTAINERS)
"""Iterators that run no user code, so reading them draws no random numbers."""


_REPORT_S = 0.1
"""How often a worker reports that it is reading the samples before those of its task. Timeouts are much longer."""


def begin_and_leave(dataset: Any) -> None:
    """Begin an epoch that this worker has missed: a dataset may count them in `__iter__`, to shuffle by them.

    A generator does so with its first sample. Datasets of feedline get the number of the epoch instead, and a feed
    would lose the sample.
    """
    if isinstance(dataset, (Acknowledged, StreamSource)):
        return
    with contextlib.suppress(Exception):  # that epoch is over
        iterator = iter(dataset)
        if inspect.isgenerator(iterator):
            next(iterator, None)


class Stream:
    """An iterator of a dataset that knows its position.

    Args:
        dataset: the iterable dataset.
        scope: notified of each sample.
        resume: where to resume; the state of the dataset itself is already restored.
        guard: decides whether a sample is tried again.
        end: where the stream has ended, if that was before a resumption: nothing is left to read. The dataset is in
            the state from which the next epoch begins.
    """

    def __init__(
        self,
        dataset: Any,
        scope: Scope,
        resume: Position | None,
        guard: Guard | None = None,
        end: Position | None = None,
    ) -> None:
        self._dataset = dataset
        self._guard = guard
        self._end = end
        with scope.kept():
            scope.open()
            if resume is not None and resume.is_before and resume.iterator is not None:
                restore_end(dataset, resume.iterator)
            samples: Any = dataset if end is None else ()  # any iterable, whose iterator may have a state
            self._iterator = iter(samples)
            self.generators = scope.own_generators() if self._draws_in_turn() else UNCHANGED
            """The context in which samples draw from the process-wide generators."""
        is_plain = type(self._iterator) in _PLAIN
        draws = not (is_plain or (isinstance(dataset, StreamSource) and dataset.draws_nothing))
        self.seeds_each = scope.seeds_globals and draws and self.generators is UNCHANGED
        """True if the process-wide generators are seeded for every sample."""
        self._goes_on = resume is not None and resume.dataset is not None and not resume.is_before
        is_ours = isinstance(dataset, StreamSource)
        self._skip = getattr(self._iterator, "skip", None) if is_ours else None
        self._take = getattr(self._iterator, "take", None) if is_ours and not self.seeds_each else None
        self.columns = getattr(self._iterator, "columns", None) if self._skip and not self.seeds_each else None
        """Returns some of a number of samples that follow as columns; None if the iterator cannot do that."""
        self._scope = scope
        self.place = 0
        """Samples read so far, including those before a resumption."""
        self._skip_to = 0
        self.has_broken_off = False
        """True if no sample follows the last exception: it ended a generator, or the iterator reports it."""
        self.report_alive: Callable[[], None] | None = None
        """Called from time to time while the samples before those of a task are read."""
        self._reported_s = 0.0
        self._skipped, self._skip_s = 0, 1e-6
        """How many samples were skipped, and how long that took."""
        self.digests: list[tuple[int, bytes]] = []
        """Digests of samples that were read since they were last taken, by place."""
        self._digest_at: float = math.inf
        """The place of the next sample to record a digest of."""
        self._is_shared = False
        if resume is not None:
            if resume.iterator is not None and not resume.is_before:
                check_restorable(dataset, self._iterator)
                self._iterator.load_state_dict(resume.iterator)
            self.place = resume.place
            # A feed does not repeat its samples, so new ones must not be skipped.
            self._skip_to = resume.place + (0 if isinstance(dataset, Acknowledged) else resume.skip)
        if end is not None:
            self.place = self._skip_to = end.place + end.skip
        # A generator runs no code before its first sample is requested.
        scope.is_common = inspect.isgenerator(self._iterator) and self.place == 0
        self.goes_in_one = not self.seeds_each and (is_plain or inspect.isgenerator(self._iterator))
        """True if many samples can be read in one go: nothing has to be done for each, and none is retried."""

    def _draws_in_turn(self) -> bool:
        """True if reading a sample runs the code of all samples before it, and its random numbers follow theirs.

        That is always so for a generator. All its random numbers follow from how the process-wide generators were
        seeded when it was opened.
        """
        is_repeated = not is_stateful(self._dataset) and not isinstance(self._dataset, Acknowledged)
        return inspect.isgenerator(self._iterator) and is_repeated

    @property
    def can_skip(self) -> bool:
        """True if samples can be skipped without making them."""
        return self._skip is not None

    @property
    def is_endless(self) -> bool:
        """True if the dataset says that it never ends."""
        return getattr(self._dataset, "is_endless", False) is True

    @property
    def takes_many(self) -> bool:
        """True if the iterator returns several samples in one call, and fails for one sample at a time."""
        return self._take is not None

    @property
    def next_place(self) -> int:
        """The place of the next sample: a stream that resumes skips those before it when it is first read."""
        return max(self.place, self._skip_to)

    def skip_to(self, place: int) -> None:
        """Go to a place, or to the end, without making the samples before it, if possible.

        It skips so few samples at a time that it can report them: skipping may run filters.
        """
        if self.place < self._skip_to or self._skip is None:
            return
        while self.place < place:
            count = min(place - self.place, 1 + int(self._skipped * _REPORT_S / self._skip_s))
            begun_s = time.monotonic()
            skipped = self._skip(count)
            self._skip_s += time.monotonic() - begun_s
            self._skipped += skipped
            self.place += skipped
            if skipped < count:
                return
            self.is_on_its_way()

    def read(self, *, logs: bool = True) -> object:
        """Return the next sample, or a `Failed` for one that cannot be made; raises StopIteration at the end.

        Args:
            logs: True to log a failure after which another attempt succeeded.
        """
        self.replay()
        return self._tried(logs=logs)

    def _tried(self, *, logs: bool) -> object:
        guard, iterator = self._guard, self._iterator
        failed: Failed | None = None
        try:
            while True:
                try:
                    sample = self._read()
                except StopIteration:
                    if failed is None:
                        raise
                    self.place += 1  # the retried sample counts too
                    return failed
                except Exception as exc:
                    failed = Failed(exc, 1 if failed is None else failed.attempt + 1, self.has_broken_off)
                    if guard is None or failed.is_last or not isinstance(iterator, Repeatable):
                        return failed
                    if not guard.tries_again(failed, self.place - 1) or not iterator.try_again():
                        return failed
                    self.place -= 1  # an attempt is not a sample
                    continue
                if failed is not None and guard is not None and logs:
                    guard.note_retry(failed, self.place - 1)
                return sample
        finally:
            del failed  # avoid a reference cycle: its traceback refers to this frame

    def fill(self, samples: list[object], count: int) -> None:
        """Read until there are `count` samples, in one go if nothing has to be done for each.

        Raises:
            StopIteration: the stream has ended before; the samples up to its end are appended.
        """
        self.replay()
        if self._take is not None:
            self._take_some(self._take, samples, count)
            return
        slow = self._scope.slow
        each = self.seeds_each or slow is not None
        while len(samples) < count and (each or self._scope.is_common):
            begun = 0 if slow is None else time.monotonic_ns()
            samples.append(self._read())
            if slow is not None:
                slow.append((time.monotonic_ns() - begun, self.place - 1))
        first = self.place - len(samples)
        self._scope.reading(samples, first)
        try:
            # Not islice, which calls `iter`: a user's iterator may start over then.
            samples.extend(map(next, itertools.repeat(self._iterator, count - len(samples))))
        except Exception as exc:
            self._scope.place = self.place = first + len(samples)
            self._record_digests(samples, first)
            self._note(exc)
            raise
        self._scope.place = self.place = first + len(samples)
        self._record_digests(samples, first)
        if len(samples) < count:
            raise StopIteration

    def _take_some(self, take: Callable[[int], list[object]], samples: list[object], count: int) -> None:
        while len(samples) < count:
            self._scope.place = self.place
            try:
                found = take(count - len(samples))
            except Exception as exc:
                self._note(exc)
                raise
            if not found:
                raise StopIteration
            samples += found
            self.place += len(found)

    def replay(self) -> None:
        """Read again the samples before a resumption; called late, with the first batch, to keep the start-up short."""
        while self.place < self._skip_to:
            self.is_on_its_way()
            try:
                sample = self._tried(logs=False)
            except StopIteration:
                raise BadState(
                    f"The stream ended after {self.place} samples, but according to the state {self._skip_to} were "
                    "read. Use the data that the state was saved with."
                ) from None
            if type(sample) is Failed and sample.is_last:  # others were raised, or skipped, with their batch
                raise twin_of(sample.reason)

    def is_on_its_way(self) -> None:
        """Report, at most once per `_REPORT_S`, that samples before those of a task are being read."""
        if self.report_alive is not None and time.monotonic() - self._reported_s > _REPORT_S:
            self._reported_s = time.monotonic()
            self.report_alive()

    def _read(self) -> Any:
        scope = self._scope
        scope.place = self.place
        if self.seeds_each:
            seed_globals(scope.key())
        try:
            sample = next(self._iterator)
        except StopIteration:
            raise
        except Exception as exc:
            self._note(exc)
            raise
        if self.place >= self._digest_at:
            self._record_digests([sample], self.place)
        self.place += 1
        if scope.is_common:
            scope.place = self.place
            scope.part(seeds=self.generators is not UNCHANGED)
        return sample

    def watch(self, *, is_shared: bool) -> None:
        """Record digests from the beginning: of the first sample, or of those at places 0, 1, 2, 4, 8 and so on.

        Args:
            is_shared: True if every worker reads the whole stream: it may leave out or exchange only later samples.
        """
        self._is_shared = is_shared
        self._digest_at = 0 if self.place == 0 else math.inf

    def _record_digests(self, samples: Sequence[object], first: int) -> None:
        """Record digests of samples that were read just now, the first at place `first`. One that failed has none."""
        while self._digest_at < first + len(samples):
            place = int(self._digest_at)
            self._digest_at = (2 * place or 1) if self._is_shared else math.inf
            digest = _digest(samples[place - first]) if place >= first else None
            if digest is not None:
                self.digests.append((place, digest))

    def _note(self, exc: Exception) -> None:
        """Record an exception that was raised in place of a sample."""
        self.place += 1  # the sample that could not be made counts too
        self.has_broken_off = broke_generator(exc, self._iterator, type(self._dataset).__name__) or (
            isinstance(self._iterator, Repeatable) and self._iterator.has_broken_off
        )

    @property
    def is_at_end(self) -> bool:
        """True if the stream had ended before it was resumed."""
        return self._end is not None

    @property
    def is_stateful(self) -> bool:
        """True if the iterator can save and restore its state."""
        return is_stateful(self._iterator) or (self._end is not None and self._end.has_state)

    def position(self) -> Position:
        """Return the current position, with the states of dataset and iterator."""
        if self._end is not None:
            return replace(self._end)
        iterator = self._iterator.state_dict() if is_stateful(self._iterator) else None
        is_one = self._iterator is self._dataset
        is_before = not self._goes_on and _has_not_begun(self._iterator)
        tells = is_stateful(self._dataset) and not is_one and (outlives_epoch(self._dataset) or not is_before)
        dataset = self._dataset.state_dict() if tells else None
        position = Position(dataset, iterator, read=self.next_place, is_one=is_one, is_before=is_before)
        if position.has_state:
            position.place = self.place
        return position


def _has_not_begun(iterator: object) -> bool:
    return inspect.isgenerator(iterator) and inspect.getgeneratorstate(iterator) == inspect.GEN_CREATED


def _digest(sample: object) -> bytes | None:
    """Return a digest of a sample; None if it cannot be computed, and then it is not compared."""
    try:
        data = _as_bytes(sample)
    except Exception:  # sending the batch will report why it cannot be pickled
        return None
    return hashlib.sha1(data, usedforsecurity=False).digest()


def _as_bytes(sample: object) -> bytes:
    try:
        return encode(sample)
    except NotARecord:
        return pickle.dumps(sample, 5)  # not for tensors, whose pickle contains their position in memory
