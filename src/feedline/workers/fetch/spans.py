"""Spans: batches of a stream that every worker of every rank reads completely, keeping only its own samples.

This splits any iterable, without knowing anything about it: each sample is delivered once, in an order that depends
only on the number of ranks, and the ranks end together. It does not save reading: a dataset that does much work per
sample does it in every worker. Such datasets should split themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from feedline.abc.framework import Gather
from feedline.abc.source import ColumnSource
from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import BadState, InternalError
from feedline.samplers.steps import Steps
from feedline.system.failures import twin_of, without_frames
from feedline.types import Span
from feedline.workers.fetch.cutting import FetcherOfStream
from feedline.workers.fetch.guard import Failed, NothingLeft


class SpanFetcher(FetcherOfStream):
    """Makes the batch of a step from this rank's samples."""

    def _begin(self, spec: WorkerSpec) -> None:
        assert spec.sharding is not None
        self.failed_place = 0
        """The place of the last sample whose exception was raised; later samples have been read since."""
        self._sharding = spec.sharding
        self._stride = spec.sharding.batch_size * spec.sharding.share.world_size
        self._exact = spec.sharding.share.tail == "exact" and spec.sharding.share.world_size > 1
        """True if the last two steps depend on where the stream ends, so the stream is read one round ahead."""
        self._held: list[object] = []
        """The samples of the step, those of other ranks as None; with `_exact` all, from one round before on."""
        self._held_from = 0
        """The place of the first of them."""
        self._total = self.stream.place if self.stream.is_at_end else None
        self._break: Failed | None = None
        """The exception that broke off the stream. Every worker raises it, also if the sample belongs to another."""
        self._has_raised_break = False
        self._has_failed = False
        self._gather: Gather | None = None
        """Makes a batch of the samples at some offsets from the next one, without making the samples."""
        if self.stream.columns is not None and spec.batched and not self._exact:
            self._gather = spec.framework.gather_for(_Following(self.stream.columns, self._stride), spec.collate)
        self.consumed: int | None = None
        """Samples that all ranks have consumed with the last batch, if the end of the stream has changed the steps."""

    @property
    def has_ended(self) -> bool:
        return self._total is not None

    def _make(self, span: Span) -> object:
        share = self._sharding.share
        begin = span.origin + span.number * self._stride
        end = begin + self._stride
        batch = self._gathered(begin)
        if batch is not None:
            return batch
        with self.stream.generators:
            self._read_to(begin, end + (share.world_size if self._exact else 0), span.origin)
        samples, places = self._own(span, begin, end)
        if self._has_failed:
            samples = self._without_failed(samples, places)
        if not samples:
            raise NothingLeft
        self._scope.collate(begin + share.rank, draws=self._collate_draws)
        return self._collated(samples if self._batched else samples[0], places)

    def _gathered(self, begin: int) -> object:
        """Return the batch of a step, made of columns; None if that is impossible: nothing was read then."""
        stream = self.stream
        has_read = self._total is not None or self._held_from + len(self._held) > begin
        if self._gather is None or has_read or (self._guard is not None and self._guard.skip):
            return None
        stream.skip_to(begin)
        if stream.place != begin:
            return None
        try:
            batch = self._gather(np.arange(self._sharding.share.rank, self._stride, self._sharding.share.world_size))
        except Exception:  # the stream ends in this step, or a sample of it fails: find out which, one by one
            return None
        if batch is None:
            self._gather = None
        else:
            stream.skip_to(begin + self._stride)
        return batch

    # -- reading ---

    def _read_to(self, begin: int, end: int, origin: int) -> None:
        """Read up to place `end` or the end of the stream; keep what the step that starts at `begin` may need."""
        stream, share = self.stream, self._sharding.share
        # Near the end, a step may begin one round earlier than otherwise, so that every rank gets a sample.
        low = begin - share.world_size if self._exact else begin
        if self._held_from > begin or (stream.place > begin and not self._held):
            raise InternalError(f"A stream is at sample {stream.place} and cannot go back to {begin}.")
        del self._held[: max(0, low - self._held_from)]
        self._held_from = max(self._held_from, low)
        skips = stream.can_skip and share.world_size > 1 and not self._exact
        in_one = not skips and (stream.goes_in_one or (stream.takes_many and self._guard is None))
        while self._total is None and stream.place < end:
            if stream.place < low:
                stream.skip_to(low)
            if stream.place < begin:
                stream.is_on_its_way()
            samples: list[object] = []
            try:
                if in_one:
                    self._fill(samples, end)
                else:
                    self._read_one(samples, begin, end, skips=skips)
            except StopIteration:
                self._total = stream.place
                if self._total <= origin - self._stride:  # a short last step may be counted as a full one
                    raise BadState(
                        f"The stream ended after {self._total} samples, but according to the state {origin} were "
                        "consumed. Use the data that the state was saved with."
                    ) from None
            finally:
                self._hold(samples, begin)

    def _fill(self, samples: list[object], end: int) -> None:
        """Read no more samples than a batch has, to limit how many of other workers and ranks are in memory at once."""
        stream = self.stream
        try:
            stream.replay()
            stream.fill(samples, min(end - stream.place, self._sharding.batch_size))
        except StopIteration:
            raise
        except Exception as exc:
            samples.append(self._failed(Failed(exc, is_last=stream.has_broken_off)))

    def _read_one(self, samples: list[object], begin: int, end: int, *, skips: bool) -> None:
        """Read the next sample, or skip those of other ranks and read the next of this one."""
        stream, share = self.stream, self._sharding.share
        stream.replay()
        place = own = stream.place + (begin + share.rank - stream.place) % share.world_size
        if stream.place == begin and share.tail == "pad" and not stream.is_endless:
            place = begin  # repeated by ranks that have no sample left
        if skips:
            stream.skip_to(min(place, end))
            if stream.place < min(place, end):
                raise StopIteration
            if stream.place == end:
                return
        sample = stream.read(logs=stream.place == own)
        samples.append(self._failed(sample) if type(sample) is Failed else sample)

    def _failed(self, failed: Failed) -> Failed:
        self._has_failed = True
        failed = replace(failed, reason=without_frames(failed.reason))
        if failed.is_last:
            self._break = failed
        return failed

    def _hold(self, samples: list[object], begin: int) -> None:
        """Keep the needed ones of samples that were just read."""
        share, first = self._sharding.share, self.stream.place - len(samples)
        if first < self._held_from:
            del samples[: self._held_from - first]
            first = self._held_from
        if share.world_size > 1 and not self._exact:
            own = slice((begin + share.rank - first) % share.world_size, None, share.world_size)
            kept: list[object] = [None] * len(samples)
            kept[own] = samples[own]
            if first == begin:  # it may be repeated
                kept[:1] = samples[:1]
            samples = kept
        skipped = first - self._held_from - len(self._held)
        self._held += [None] * skipped + samples

    # -- delivering ---

    def _own(self, span: Span, begin: int, end: int) -> tuple[list[object], Sequence[int]]:
        """Return this rank's samples of a step, and their places."""
        share, total, held, held_from = self._sharding.share, self._total, self._held, self._held_from
        first = begin + share.rank
        if total is None or total >= end + (share.world_size if self._exact else 0):
            return held[first - held_from : end - held_from : share.world_size], range(first, end, share.world_size)
        if self._break is not None:
            if self._has_raised_break:
                raise StopIteration
            before = range(first, min(end, total - 1), share.world_size)
            samples = [held[place - held_from] for place in before]
            return ([*samples, self._break], [*before, total - 1]) if total <= end else (samples, before)
        drop_last = self._sharding.drop_last and self._batched
        steps = Steps(max(0, total - span.origin), self._sharding.batch_size, share, drop_last=drop_last)
        if span.number >= (steps.count or 0):
            raise StopIteration
        self.consumed = span.origin + min(steps.start(span.number + 1), total - span.origin)
        places = (steps.own(span.number) + span.origin).tolist()
        repeated = first if first < total else begin  # by a rank that has no sample left
        return [held[(place if place < total else repeated) - held_from] for place in places], places

    def _without_failed(self, samples: list[object], places: Sequence[int]) -> list[object]:
        made = []
        for sample, place in zip(samples, places, strict=True):
            if type(sample) is not Failed:
                made.append(sample)
            elif self._guard is None or sample.is_last or not self._guard.leaves_out(sample, place):
                self.failed_place = place
                self._has_raised_break = sample.is_last
                raise twin_of(sample.reason)  # the stored exception must not refer to the frames of the callers
        return made


class _Following(ColumnSource):
    """The samples that follow in a stream, by their offset from the next one."""

    def __init__(self, columns: Callable[[NDArray[np.int64], int], object], step: int) -> None:
        self._columns = columns
        self._step = step

    def read_columns(self, indices: NDArray[np.int64]) -> object:
        return self._columns(indices, self._step)
