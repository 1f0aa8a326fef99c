"""Streams that are not split as they should be warn once."""

from __future__ import annotations

import pytest

from feedline.delivery.machine.stream_check import StreamCheck
from feedline.errors import DataWarning
from feedline.types import Notes, Result, Task
from tests.delivery.stepping import Bench, SteppingEngine, numbers


def warnings_for(streams: StreamCheck, *values: bytes | None) -> list[tuple[int, type[Warning]]]:
    """Report first samples, one worker after the other; return which worker caused which warning."""
    messages = [streams.look_at(Notes(digests=() if value is None else ((0, value),))) for value in values]
    return [(worker, category) for worker, found in enumerate(messages) for _, category in found]


@pytest.mark.parametrize(
    ("is_shared", "values", "warning_at"),
    [
        (True, (b"a", b"a", b"a"), None),
        (True, (b"a", None, b"a"), None),
        (True, (b"a", b"a", b"b", b"c"), 2),
        (False, (b"a", b"b", b"c"), None),
        (False, (None, None, b"a"), None),
        (False, (b"a", b"a", b"a", b"b", b"b"), 1),
    ],
)
def test_workers_that_start_otherwise_than_they_should_warn_once(
    is_shared: bool, values: tuple[bytes | None, ...], warning_at: int | None
) -> None:
    expected = [] if warning_at is None else [(warning_at, DataWarning)]
    assert warnings_for(StreamCheck(is_shared=is_shared), *values) == expected


def test_workers_of_a_shared_stream_that_differ_later_warn() -> None:
    stream = StreamCheck(is_shared=True)
    assert not stream.look_at(Notes(digests=((0, b"a"), (1, b"b"), (4, b"c"))))
    assert not stream.look_at(Notes(digests=((0, b"a"), (2, b"d")))), "nobody else has read these places"
    assert stream.look_at(Notes(digests=((4, b"d"),)))


def test_only_the_first_of_two_problems_warns() -> None:
    stream = StreamCheck(is_shared=True)
    ((_, category),) = stream.look_at(Notes(shards_itself=True, digests=((0, b"a"),)))
    assert category is DataWarning
    assert warnings_for(stream, b"b") == []


class SplitsItself(SteppingEngine):
    def _result(self, worker: int, task: Task) -> Result:
        result = super()._result(worker, task)
        result.notes = Notes(shards_itself=True)
        return result


def test_a_dataset_that_also_splits_itself_warns_once() -> None:
    with Bench(count=6, engine=SplitsItself) as bench:
        with pytest.warns(DataWarning, match="Drop shard=") as warned:
            assert bench.run() == numbers(6)
        assert len(warned) == 1
