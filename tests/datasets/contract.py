"""The source contract that most test files subclass: what every source does, and what feedline's own do besides.

Only `make slow` starts new interpreters for each source.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from feedline.abc.source import ColumnSource
from feedline.datasets.derived.cache.fingerprint import fingerprint
from feedline.errors import BadOption
from feedline.testing import SourceContract as PublicContract
from feedline.testing.asserting import error_of


class SourceContract(PublicContract):
    """What every source of feedline must do; the test of start methods takes 3 s of CPU time."""

    takes_transform = True
    takes_fields = False
    """True if samples are dicts by default, and `make_source` takes `fields=`."""

    @pytest.mark.slow
    def test_batches_are_the_same_with_every_start_method(self) -> None:
        super().test_batches_are_the_same_with_every_start_method()

    def test_indices_from_the_end(self) -> None:
        with self._opened() as (source, samples):
            self.same(source[-1], samples[-1])
            self.same(source[-len(samples)], samples[0])
            for found, index in zip(source.__getitems__([-1, 0]), (-1, 0), strict=True):
                self.same(found, samples[index])

    def test_no_indices_are_no_error(self) -> None:
        with self._opened() as (source, _):
            assert source.__getitems__([]) == []
            if isinstance(source, ColumnSource):
                source.read_columns(np.empty(0, np.int64))

    def test_reading_does_not_change_the_fingerprint(self) -> None:
        with self._opened() as (source, samples):
            before = fingerprint(source)
            source[len(samples) - 1]
            if isinstance(source, ColumnSource):
                source.read_columns(np.arange(len(samples)))
            assert fingerprint(source) == before

    def test_an_index_out_of_range_is_named_with_the_number_of_samples(self) -> None:
        with self._opened() as (source, samples):
            for index in (len(samples), -len(samples) - 1, 10**12):
                assert str(len(samples)) in str(error_of(functools.partial(source.__getitem__, index), IndexError))
                error_of(functools.partial(source.__getitems__, [0, index]), IndexError)

    def test_an_index_that_is_no_number(self) -> None:
        with self._opened() as (source, _):
            error_of(lambda: source["a"], TypeError)
            error_of(lambda: source[1.5], TypeError)

    def test_a_transform_is_a_function_and_in_the_repr(self) -> None:
        if not self.takes_transform:
            pytest.skip("takes_transform is False")
        with self._opened(transform=str) as (source, samples):
            assert len(source) == len(samples)
            assert "str" in repr(source)
        error_of(lambda: self.make_source(transform=3), BadOption)

    def test_fields_choose_what_is_in_a_sample_and_how(self) -> None:
        if not self.takes_fields:
            pytest.skip("takes_fields is False")
        whole = self.samples()[2]
        first, last = next(iter(whole)), list(whole)[-1]
        for fields, expected in (
            (None, whole),
            (last, whole[last]),
            ((last, first), (whole[last], whole[first])),
            ([last, first], {last: whole[last], first: whole[first]}),
            ({"x": last, "y": last}, {"x": whole[last], "y": whole[last]}),
        ):
            with self._opened(fields=fields) as (source, _):
                self.same(source[2], expected)
                self.same(source.__getitems__([2])[0], expected)
        for fields in ("nothing", (first, "nothing"), {"x": "nothing"}, [first, first], (), [], {}, 3, b"x", [3]):
            error_of(functools.partial(self._first, fields=fields), BadOption)

    # Any: a sample.
    def _first(self, **options: object) -> Any:
        with self._opened(**options) as (source, _):
            return source[0]

    def test_the_repr_says_what_is_in_it(self) -> None:
        with self._opened() as (source, samples):
            assert len(source) == len(samples)  # some count their samples only now
            assert type(source).__name__ in repr(source)
            assert str(len(samples)) in repr(source)

    def test_a_source_can_be_closed(self) -> None:
        with self._opened() as (source, _):
            source.close()
