"""What every map-style source must do, as tests.

Define in a subclass how a source is created, and what it contains:

    class TestMySource(SourceContract):
        def make_source(self, **options) -> MySource:
            return MySource(self.path, **options)

        def samples(self) -> list:
            return [...]  # what it was written from

`samples` has to return at least 24 samples, in the form and with the types that the source returns.
"""

from __future__ import annotations

import functools
import operator
import os
import pickle
import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import feedline
from feedline.abc.source import ColumnSource
from feedline.collate import default
from feedline.errors import BadOption
from feedline.types import EngineName

BATCH = 5


class SourceContract:
    """Subclass this in a test file.

    Example:
        >>> from feedline.datasets import ArrayDataset
        >>> class TestArrays(SourceContract):
        ...     def make_source(self, **options):
        ...         return ArrayDataset(np.arange(24), **options)
        ...     def samples(self):
        ...         return list(np.arange(24))
        >>> TestArrays().test_a_forked_process_reads_after_its_parent_did()  # pytest runs all of them
    """

    takes_transform = True
    """False if the source has no `transform=`."""
    compares_pickled = False
    """True to compare samples by their pickles, because they contain objects other than arrays without equality."""

    # Any, throughout: a source is any dataset, with samples of any type.
    def make_source(self, **options: object) -> Any:
        """Return a new source; `options` go to its constructor."""
        raise NotImplementedError

    def samples(self) -> list[Any]:
        """Return the samples that the source contains, in order."""
        raise NotImplementedError

    def same(self, found: object, expected: object) -> None:
        """Compare two samples or batches: types and bits."""
        if self.compares_pickled:
            assert pickle.dumps(found) == pickle.dumps(expected)
        else:
            assert_same(found, expected)

    def test_samples_are_what_was_written(self) -> None:
        source, samples = self.make_source(), self.samples()
        assert len(samples) >= 24, "samples() must return at least 24 samples"
        assert len(source) == len(samples)
        for index, sample in enumerate(samples):
            self.same(source[index], sample)
        source.close()

    def test_several_samples_are_read_together(self) -> None:
        source, samples = self.make_source(), self.samples()
        for indices in ([3, 1, 2], [7, 7, 0, 7], [-1, 0], [len(samples) - 1], [], list(range(len(samples)))[::-1]):
            found = source.__getitems__(indices)
            assert len(found) == len(indices)
            for index, sample in zip(indices, found, strict=True):
                self.same(sample, samples[index])
        source.close()

    def test_indices_of_numpy_and_from_the_end(self) -> None:
        source, samples = self.make_source(), self.samples()
        self.same(source[np.int64(2)], samples[2])
        self.same(source[-1], samples[-1])
        self.same(source[-len(samples)], samples[0])
        source.close()

    def test_an_index_out_of_range(self) -> None:
        source = self.make_source()
        count = len(source)
        for index in (count, -count - 1, 10**12):
            assert str(count) in str(error_of(functools.partial(operator.getitem, source, index), IndexError))
            error_of(functools.partial(source.__getitems__, [0, index]), IndexError)
        source.close()

    def test_an_index_that_is_no_number(self) -> None:
        source = self.make_source()
        error_of(lambda: source["a"], TypeError)
        error_of(lambda: source[1.5], TypeError)
        source.close()

    def test_a_source_can_be_iterated_over(self) -> None:
        source, samples = self.make_source(), self.samples()
        for found, expected in zip(source, samples, strict=True):
            self.same(found, expected)
        source.close()

    def test_a_transform_is_applied_to_each_sample(self) -> None:
        if not self.takes_transform:
            raise unittest.SkipTest("takes_transform is False")
        source, samples = self.make_source(transform=_wrapped), self.samples()
        kind, found = source[3]
        assert kind == "wrapped"
        self.same(found, samples[3])
        for (_, one), index in zip(source.__getitems__([4, 2]), (4, 2), strict=True):
            self.same(one, samples[index])
        assert "_wrapped" in repr(source)
        error_of(lambda: self.make_source(transform=3), BadOption)
        source.close()

    def test_a_source_can_be_pickled_closed_and_open(self) -> None:
        source, samples = self.make_source(), self.samples()
        for _ in range(2):
            text = pickle.dumps(source)
            other = pickle.loads(text)
            assert len(other) == len(samples)
            self.same(other[1], samples[1])
            other.close()
            self.same(source[1], samples[1])  # now the source has open handles
        source.close()

    def test_a_source_can_be_closed_twice_and_used_again(self) -> None:
        source, samples = self.make_source(), self.samples()
        source.close()
        for _ in range(2):
            self.same(source[2], samples[2])
            source.close()
            source.close()

    def test_the_repr_says_what_is_in_it(self) -> None:
        source = self.make_source()
        count = len(source)
        text = repr(source)
        assert type(source).__name__ in text
        assert str(count) in text
        source.close()

    def test_a_forked_process_reads_after_its_parent_did(self) -> None:
        if not hasattr(os, "fork"):
            raise unittest.SkipTest("this system has no fork")
        source, samples = self.make_source(), self.samples()
        self.same(source[0], samples[0])
        check = functools.partial(self.same, expected=samples[5])
        for _ in range(2):
            assert _in_fork(lambda: check(source[5])) == 0
            self.same(source[6], samples[6])  # the child did not affect the parent
        source.close()

    def test_threads_read_at_the_same_time(self) -> None:
        source, samples = self.make_source(), self.samples()
        count = len(samples)
        with ThreadPoolExecutor(4) as threads:
            requests = [[(step * 7 + shift) % count for shift in range(6)] for step in range(40)]
            for indices, found in zip(requests, threads.map(source.__getitems__, requests), strict=True):
                for index, sample in zip(indices, found, strict=True):
                    self.same(sample, samples[index])
        source.close()

    def test_columns_are_what_the_default_collate_function_makes_of_samples(self) -> None:
        source, samples = self.make_source(), self.samples()
        read: Callable[[Any], object] | None = source.read_columns if isinstance(source, ColumnSource) else None
        if read is None:
            raise unittest.SkipTest("the source does not read columns")
        for indices in ([3], [3, 1, 2, 2], [-1, 0]):
            columns = read(np.array(indices))
            if columns is not None:
                self.same(columns, default([samples[index] for index in indices]))
        error_of(lambda: read(np.array([len(samples)])), IndexError)
        source.close()

    def test_batches_are_the_same_with_every_engine(self) -> None:
        """Also when the handles were open before the workers started."""
        samples = self.samples()
        source = self.make_source()
        self.same(source[0], samples[0])
        expected = [samples[first : first + BATCH] for first in range(0, len(samples), BATCH)]
        ways: list[tuple[EngineName, int]] = [("inline", 0), ("thread", 3), ("process", 1), ("process", 3)]
        for engine, workers in ways:
            loader = feedline.Loader(source, BATCH, workers=workers, engine=engine, collate_fn=_as_it_is)
            for found, batch in zip(loader, expected, strict=True):
                self.same(list(found), batch)
        source.close()

    def test_batches_are_the_same_with_every_start_method(self) -> None:
        samples = self.samples()
        source = self.make_source()
        self.same(source[0], samples[0])
        expected = [samples[first : first + BATCH] for first in range(0, len(samples), BATCH)]
        for start_method in ("forkserver", "spawn"):
            loader = feedline.Loader(source, BATCH, workers=2, start_method=start_method, collate_fn=_as_it_is)
            for found, batch in zip(loader, expected, strict=True):
                self.same(list(found), batch)
        source.close()


def _as_it_is(samples: object) -> object:
    return samples


def _wrapped(sample: object) -> object:
    return "wrapped", sample


def _in_fork(act: Callable[[], object]) -> int:
    """Call `act` in a forked process and return its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def error_of(act: Callable[[], object], kind: type[Exception]) -> Exception:
    """Return the exception that `act` raises, which must be a `kind`."""
    try:
        found = act()
    except kind as exc:
        return exc
    raise AssertionError(f"expected {kind.__name__}, but {found!r} was returned")


def assert_same(found: Any, expected: Any) -> None:
    """Compare nested containers of arrays, numbers, strings and bytes: types and bits."""
    assert type(found) is type(expected), f"found {type(found).__name__}, expected {type(expected).__name__}"
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected or (found != found and expected != expected)
