"""Streams that are not what they have to be: the user is told, once."""

from __future__ import annotations

import pytest

from feedline.delivery.machine.stream_check import OwnStreams, SharedStream
from feedline.errors import DataWarning
from feedline.types import Notes, Result, Task
from tests.loader.epochs import Bench, numbers
from tests.loader.stepping import SteppingEngine


def told(streams: SharedStream | OwnStreams, *values: bytes | None) -> list[tuple[int, type[Warning]]]:
    """Tell of first samples, one worker after the other; returns who gave rise to which warning."""
    heard = [streams.look_at(Notes(digest=value)) for value in values]
    return [(worker, message[1]) for worker, message in enumerate(heard) if message is not None]


@pytest.mark.parametrize("values", [(b"a", b"a", b"a"), (b"a", None, b"a"), (None, None)])
def test_workers_that_read_the_same_stream_may_all_begin_alike(values: tuple[bytes | None, ...]) -> None:
    assert told(SharedStream(), *values) == []


def test_workers_that_should_read_the_same_stream_and_do_not() -> None:
    assert told(SharedStream(), b"a", b"a", b"b", b"c") == [(2, DataWarning)]


def test_of_two_troubles_the_first_is_told() -> None:
    stream = SharedStream()
    message = stream.look_at(Notes(shards_itself=True, digest=b"a"))
    assert message is not None
    assert message[1] is DataWarning
    assert told(stream, b"b") == []


@pytest.mark.parametrize("values", [(b"a", b"b", b"c"), (None, None, b"a")])
def test_workers_with_streams_of_their_own_may_all_begin_otherwise(values: tuple[bytes | None, ...]) -> None:
    assert told(OwnStreams(3), *values) == []


def test_workers_that_should_have_streams_of_their_own_and_do_not() -> None:
    assert told(OwnStreams(3), b"a", b"a", b"a", b"b", b"b") == [(1, DataWarning)]


class SplitsItself(SteppingEngine):
    def _result(self, worker: int, task: Task) -> Result:
        result = super()._result(worker, task)
        result.notes = Notes(shards_itself=True)
        return result


def test_a_dataset_that_splits_itself_as_well_is_told_of_once() -> None:
    with Bench(count=6, engine=SplitsItself) as bench:
        with pytest.warns(DataWarning, match="Drop shard=") as told:
            assert bench.run() == numbers(6)
        assert len(told) == 1
