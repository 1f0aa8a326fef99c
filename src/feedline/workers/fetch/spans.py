"""Spans: batches of a stream that every worker of every rank reads completely, keeping only its own samples.

This splits any iterable, without knowing anything about it: each sample is delivered once, in an order that depends
only on the number of ranks, and the ranks end together. It does not save reading: a dataset that does much work per
sample does it in every worker. Such datasets should split themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from feedline.abc.framework import Gather
from feedline.abc.source import ColumnSource
from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import BadState, InternalError
from feedline.samplers.steps import Steps
from feedline.system.failures import twin_of, without_frames
from feedline.types import Span
from feedline.workers.fetch.guard import NothingLeft
from feedline.workers.fetch.streams import FetcherOfStream


class SpanFetcher(FetcherOfStream):
    """Makes the batch of a step from this rank's samples."""

    def _begin(self, spec: WorkerSpec) -> None:
        assert spec.sharding is not None
        self.failed_place = 0
        """The place of the last sample whose exception was raised; later samples have been read since."""
        self._sharding = spec.sharding
        self._exact = spec.sharding.share.tail == "exact" and spec.sharding.share.world_size > 1
        """True if the last two steps depend on where the stream ends, so the stream is read one round ahead."""
        self._held: dict[int, object] = {}
        self._total: int | None = None
        self._break: _Failed | None = None
        """The exception that broke off the stream. Every worker raises it, also if the sample belongs to another."""
        self._has_raised_break = False
        self._has_failed = False
        self._gather: Gather | None = None
        """Makes a batch of the samples at some offsets from the next one, without making the samples."""
        if self.stream.columns is not None and spec.batched and not self._exact:
            step = self._sharding.batch_size * self._sharding.share.world_size
            self._gather = spec.framework.gather_for(_Following(self.stream.columns, step), spec.collate)
        self.consumed: int | None = None
        """Samples that all ranks have consumed with the last batch, if the end of the stream has changed the steps."""

    def _make(self, span: Span) -> object:
        sharding, share = self._sharding, self._sharding.share
        stride = sharding.batch_size * share.world_size
        begin = span.origin + span.number * stride
        if (batch := self._gathered(begin, stride)) is not None:
            return batch
        if stride == sharding.batch_size and (whole := self._whole_batch(begin, stride)) is not None:
            self._scope.collate(begin, draws=self._collate_draws)
            return self._collated(whole if self._batched else whole[0], range(begin, begin + stride))
        end = begin + stride + (share.world_size if self._exact else 0)
        with self.stream.generators:
            self._read_to(begin, end, span.origin)
        if self._total is None or self._total >= end:
            own = np.arange(begin + share.rank, begin + stride, share.world_size).tolist()
        elif self._break is not None:
            own = self._up_to_break(begin, begin + stride)
        else:
            steps = Steps(
                max(0, self._total - span.origin),
                sharding.batch_size,
                share,
                drop_last=sharding.drop_last and self._batched,
            )
            if span.number >= (steps.count or 0):
                raise StopIteration
            own = (steps.own(span.number) + span.origin).tolist()
            self.consumed = span.origin + min(steps.start(span.number + 1), self._total - span.origin)
        there = own if self._total is None else [self._there(place, begin) for place in own]
        samples = [self._held[place] for place in there]
        if self._has_failed:
            samples = self._without_failed(samples, own)
        if not samples:
            raise NothingLeft
        self._scope.collate(begin + share.rank, draws=self._collate_draws)
        return self._collated(samples if self._batched else samples[0], own)

    def _gathered(self, begin: int, stride: int) -> object:
        """Return the batch of a step, made of columns; None if that is impossible: nothing was read then."""
        stream, share = self.stream, self._sharding.share
        is_clear = self._guard is None or not self._guard.skip
        if self._gather is None or not is_clear or self._total is not None or not self._is_at(begin):
            return None
        try:
            batch = self._gather(np.arange(share.rank, stride, share.world_size))
        except Exception:  # the stream ends in this step, or a sample of it fails: find out which, one by one
            return None
        if batch is None:
            self._gather = None
        else:
            stream.skip_to(begin + stride)
        return batch

    def _is_at(self, begin: int) -> bool:
        """Go to a place, and return whether the next sample of the stream is the one there, and none is held."""
        if self._held and max(self._held) >= begin:
            return False
        self._held.clear()
        self.stream.skip_to(begin)
        return self.stream.place == begin

    def _whole_batch(self, begin: int, count: int) -> list[object] | None:
        """Return the samples of a step of the only rank, read in one go; None if that is impossible.

        Samples read before one that fails, or before the end of the stream, are kept for the general path.
        """
        stream = self.stream
        if not stream.takes_many or self._guard is not None or self._total is not None or not self._is_at(begin):
            return None
        samples: list[object] = []
        try:
            stream.fill(samples, count)
        except StopIteration:
            self._hold(samples, begin, begin, begin)
            return None
        except Exception as exc:
            failed = self._failed(exc, is_last=stream.has_broken_off)
            self._break = failed if failed.is_last else None
            self._hold([*samples, failed], begin, begin, begin)
            return None
        except BaseException:
            self._hold(samples, begin, begin, begin)
            raise
        return samples

    def _without_failed(self, samples: list[object], places: list[int]) -> list[object]:
        made = []
        for sample, place in zip(samples, places, strict=True):
            if type(sample) is not _Failed:
                made.append(sample)
            elif self._guard is None or sample.is_last or not self._guard.leaves_out(sample.reason, place):
                self._raise(sample, place)
        return made

    def _failed(self, exc: Exception, *, is_last: bool = False) -> _Failed:
        self._has_failed = True
        return _Failed(without_frames(exc), is_last)

    def _up_to_break(self, begin: int, end: int) -> list[int]:
        """Return this rank's places of a step in a stream that broke off, and the place where it did."""
        assert self._total is not None
        if self._has_raised_break:
            raise StopIteration
        share, last = self._sharding.share, self._total - 1
        own: list[int] = np.arange(begin + share.rank, min(end, last), share.world_size).tolist()
        if last < end:
            self._held[last] = self._break
            own.append(last)
        return own

    def _raise(self, failed: _Failed, place: int) -> NoReturn:
        self.failed_place = place
        self._has_raised_break = failed.is_last
        raise twin_of(failed.reason)  # a copy: the stored exception must not refer to the frames of the callers

    def _there(self, place: int, begin: int) -> int:
        """Return the place of the sample to deliver: a rank that has none left repeats its first one of the step."""
        if self._total is None or place < self._total:
            return place
        own = begin + self._sharding.share.rank
        return own if own < self._total else begin

    def _read_to(self, begin: int, end: int, origin: int) -> None:
        """Read up to place `end` or the end of the stream; keep what the step that starts at `begin` may need."""
        stream, held, share = self.stream, self._held, self._sharding.share
        # Near the end, a step may begin one round earlier than otherwise, so that every rank gets a sample.
        low = begin - share.world_size if self._exact else begin
        for place in [place for place in held if place < low]:
            del held[place]
        if stream.place > begin and begin not in held and self._total is None:
            raise InternalError(f"A stream is at sample {stream.place} and cannot go back to {begin}.")
        if self._total is None:
            stream.skip_to(low)
        in_one = stream.goes_in_one or (stream.takes_many and self._guard is None)
        read = self._read_some if in_one else self._read_one
        if share.world_size > 1 and stream.can_skip and not self._exact:
            read = self._read_own
        while self._total is None and stream.place < end:
            if stream.place < begin:
                stream.is_on_its_way()
            try:
                read(begin, low, end)
            except StopIteration:
                self._total = stream.place
                stride = self._sharding.batch_size * share.world_size
                if self._total <= origin - stride:  # a short last step may be counted as a full one
                    raise BadState(
                        f"The stream ended after {self._total} samples, but according to the state {origin} were "
                        "consumed. Use the data that the state was saved with."
                    ) from None

    def _read_some(self, begin: int, low: int, end: int) -> None:
        """Read no more samples than a batch has, to limit how many of other workers and ranks are in memory at once."""
        stream = self.stream
        samples: list[object] = []
        try:
            stream.replay()
            stream.fill(samples, min(end - stream.place, self._sharding.batch_size))
        except StopIteration:
            raise
        except Exception as exc:
            if stream.has_broken_off:
                self._break = self._failed(exc, is_last=True)
                samples.append(self._break)
            elif stream.takes_many:
                samples.append(self._failed(exc))
            else:
                raise
        finally:
            self._hold(samples, stream.place - len(samples), begin, low)

    def _hold(self, samples: list[object], first: int, begin: int, low: int) -> None:
        """Keep the needed ones of samples that were read from place `first` on."""
        held, end = self._held, first + len(samples)
        own, step = begin + self._sharding.share.rank, self._sharding.share.world_size
        if self._exact:
            own, step = low, 1
        elif first <= begin < end:
            held[begin] = samples[begin - first]
        own += max(0, -((own - first) // step) * step)
        held.update(zip(range(own, end, step), samples[own - first :: step], strict=True))

    def _read_own(self, begin: int, low: int, end: int) -> None:
        """Read the next sample that this rank needs, and skip those of other ranks."""
        stream, share = self.stream, self._sharding.share
        stream.replay()
        place = stream.place
        if place == begin and share.tail == "pad" and not stream.is_endless:
            own = begin  # repeated by a rank that has no sample left
        else:
            own = place + (begin + share.rank - place) % share.world_size
        stream.skip_to(min(own, end))
        if stream.place < min(own, end):
            raise StopIteration
        if own < end:
            self._read_one(begin, low, end)

    def _read_one(self, begin: int, low: int, end: int) -> None:
        share, place = self._sharding.share, self.stream.place
        own = place == begin or (place > begin and (place - begin) % share.world_size == share.rank)
        sample = self._read(place, is_own=own)
        if own or (self._exact and place >= low):
            self._held[place] = sample

    def _read(self, place: int, *, is_own: bool) -> object:
        """Return the next sample, or a `_Failed` if it cannot be made, which is raised in the batch it belongs to."""
        stream, guard, attempt = self.stream, self._guard, 1
        failed: Exception | None = None
        while True:
            try:
                sample = stream.read()
            except StopIteration:
                if failed is None:
                    raise
                stream.place += 1  # the retried sample counts too
                return self._failed(failed)
            except Exception as exc:
                if stream.has_broken_off:
                    self._break = self._failed(exc, is_last=True)
                    return self._break
                is_tried = guard is not None and stream.is_repeatable and guard.tries_again(exc, attempt)
                if not is_tried or not stream.try_again():
                    return self._failed(exc)
                failed, attempt = without_frames(exc), attempt + 1
                continue
            if failed is not None and guard is not None and is_own:
                guard.note_retry(failed, place, attempt)
            return sample


@dataclass(frozen=True)
class _Failed:
    """Stands in for a sample that could not be made."""

    reason: Exception
    is_last: bool = False
    """True if no sample follows, whatever the policy is."""


class _Following(ColumnSource):
    """The samples that follow in a stream, by their offset from the next one."""

    def __init__(self, columns: Callable[[NDArray[np.int64], int], object], step: int) -> None:
        self._columns = columns
        self._step = step

    def read_columns(self, indices: NDArray[np.int64]) -> object:
        return self._columns(indices, self._step)
