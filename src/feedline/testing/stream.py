"""What a stream must do, as tests."""

from __future__ import annotations

import pickle
from typing import Any

import feedline
from feedline.testing.source import BATCH, SourceBench, as_it_is


class StreamContract(SourceBench):
    """What an iterable dataset must do so that a loader can split it over workers and resume it, as tests.

    Subclass this in a test file; pytest runs the tests. The dataset is a `feedline.abc.StreamSource`, or another whose
    iterators all yield the same samples in the same order, and do not depend on each other.

    Example:
        >>> class Lines(feedline.abc.StreamSource):
        ...     def __iter__(self):
        ...         yield from range(24)
        >>> class TestLines(StreamContract):
        ...     def make_source(self):
        ...         return Lines()
        ...     def samples(self):
        ...         return list(range(24))
        >>> TestLines().test_a_loader_resumes_after_every_batch()  # pytest runs all of them
    """

    def test_every_iterator_yields_all_samples(self) -> None:
        with self._opened() as (source, samples):
            assert len(samples) >= 24, "samples() must return at least 24 samples"
            for _ in range(2):
                for found, expected in zip(source, samples, strict=True):
                    self.same(found, expected)

    def test_iterators_do_not_depend_on_each_other(self) -> None:
        with self._opened() as (source, samples):
            one, other = iter(source), iter(source)
            for sample in samples:
                self.same(next(one), sample)
                self.same(next(other), sample)

    def test_a_stream_can_be_pickled(self) -> None:
        with self._opened() as (source, samples):
            next(iter(source))
            for found, expected in zip(pickle.loads(pickle.dumps(source)), samples, strict=True):
                self.same(found, expected)

    def test_a_loader_resumes_after_every_batch(self) -> None:
        expected = self.samples()
        for workers in (0, 2):
            for done in range(0, len(expected), BATCH):
                with self._opened() as (source, _), self._loader(source, workers) as loader:
                    for _ in zip(range(done // BATCH), loader, strict=False):
                        pass
                    state = loader.state_dict()
                with self._opened() as (source, _), self._loader(source, workers) as loader:
                    loader.load_state_dict(state)
                    self._check_batches(loader, expected[done:])

    # Any: a dataset.
    def _loader(self, source: Any, workers: int) -> feedline.Loader:
        return feedline.Loader(
            source, BATCH, workers=workers, engine="thread" if workers else "inline", collate_fn=as_it_is
        )
