"""Streams that are not what they have to be: the user is told, once."""

from __future__ import annotations

import warnings

import pytest

from feedline.errors import RepeatedSamples, SplitTwice, UnequalStreams
from feedline.loader.stream_watch import OwnStreams, SharedStream
from feedline.types import Notes, Result, Task
from tests.loader.epochs import Bench, numbers
from tests.loader.stepping import SteppingEngine


def tell(streams: SharedStream | OwnStreams, *values: bytes | None) -> None:
    """Tell of first samples, one worker after the other."""
    for value in values:
        streams.look_at(Notes(digest=value))


@pytest.mark.parametrize("values", [(b"a", b"a", b"a"), (b"a", None, b"a"), (None, None)])
def test_workers_that_read_the_same_stream_may_all_begin_alike(values: tuple[bytes | None, ...]) -> None:
    stream = SharedStream()
    tell(stream, *values)  # warnings are errors


def test_workers_that_should_read_the_same_stream_and_do_not() -> None:
    stream = SharedStream()
    with pytest.warns(UnequalStreams, match="drop shard=") as told:
        tell(stream, b"a", b"a", b"b", b"c")
    assert len(told) == 1


def test_of_two_troubles_the_first_is_told() -> None:
    stream = SharedStream()
    with pytest.warns(SplitTwice) as told:
        stream.look_at(Notes(splits_itself=True, digest=b"a"))
    tell(stream, b"b")
    assert len(told) == 1


@pytest.mark.parametrize("values", [(b"a", b"b", b"c"), (None, None, b"a")])
def test_workers_with_streams_of_their_own_may_all_begin_otherwise(values: tuple[bytes | None, ...]) -> None:
    streams = OwnStreams(3)
    tell(streams, *values)  # warnings are errors


def test_workers_that_should_have_streams_of_their_own_and_do_not() -> None:
    streams = OwnStreams(3)
    with pytest.warns(RepeatedSamples, match="one of the 3 workers delivers the whole dataset") as told:
        tell(streams, b"a", b"a", b"a", b"b", b"b")
    assert len(told) == 1


def test_what_is_made_an_error_is_not_told_again() -> None:
    streams = OwnStreams(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streams.look_at(Notes(digest=b"a"))
        with pytest.raises(RepeatedSamples):
            streams.look_at(Notes(digest=b"a"))
        streams.look_at(Notes(digest=b"a"))


class SplitsItself(SteppingEngine):
    def _result(self, worker: int, task: Task) -> Result:
        result = super()._result(worker, task)
        result.notes = Notes(splits_itself=True)
        return result


def test_a_dataset_that_splits_itself_as_well_is_told_of_once() -> None:
    with Bench(count=6, engine=SplitsItself) as bench:
        with pytest.warns(SplitTwice, match="Drop shard=") as told:
            assert bench.run() == numbers(6)
        assert len(told) == 1
