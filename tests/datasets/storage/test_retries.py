import pickle
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.storage import blob as blob_module
from feedline.datasets.storage.blob import RetryPolicy, TooSlow, Transient, read_range
from feedline.errors import SourceError

DATA = bytes(range(256)) * 8


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(0, 2000), st.integers(0, 2048))
def test_dropped_connections_do_not_change_the_bytes(pieces: list[int], start: int, stop: int) -> None:
    """Each number is how many bytes arrive before the next drop."""
    left = iter(pieces)
    asked: list[int] = []

    def get(at: int, end: int) -> Iterator[bytes]:
        asked.append(at)
        count = next(left, None)
        if count is None:
            yield DATA[at:end]
            return
        yield DATA[at : min(end, at + count)]
        raise Transient("dropped")

    expected = DATA[start:stop]
    found = read_range(get, start, stop, name="x", retry_policy=RetryPolicy(retries=100))
    assert found == expected
    assert asked == sorted(asked)  # bytes that have arrived are not requested again


def test_progress_resets_the_number_of_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_module, "_PROGRESS", 10)
    drops = iter([12, 0, 12, 0, 12, 0])

    def get(at: int, end: int) -> Iterator[bytes]:
        count = next(drops, None)
        yield DATA[at:end] if count is None else DATA[at : at + count]
        if count is not None:
            raise Transient("dropped")

    assert read_range(get, 0, 500, name="x", retry_policy=RetryPolicy(retries=2)) == DATA[:500]


def test_the_last_failure_says_where_and_why() -> None:
    def get(at: int, end: int) -> Iterator[bytes]:
        if at == 0:
            yield DATA[:3]
        raise Transient("the cable was cut")

    with pytest.raises(SourceError, match=r"shard-7 cannot be read at byte 3: the cable was cut \(tried 3 times\)"):
        read_range(get, 0, 5, name="shard-7", retry_policy=RetryPolicy(retries=2))


def test_an_early_end_counts_as_a_failed_attempt() -> None:
    with pytest.raises(SourceError, match=r"ended early \(tried once\)"):
        read_range(
            lambda at, end: iter([DATA[at : end - 1]] if at == 0 else []), 0, 5, name="x", retry_policy=RetryPolicy(0)
        )


class Line:
    """A connection with a virtual clock: bytes take time at `rate`, or at a rate for each request."""

    def __init__(self, size: int, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = random.Random(0).randbytes(size)
        self.rate = rate
        self.now_s = 0.0
        self.asked: list[tuple[int, int]] = []
        self.rates: dict[int, float] = {}
        self.closed = 0
        monkeypatch.setattr("feedline.datasets.storage.blob.time.monotonic", lambda: self.now_s)

    def get(self, start: int, stop: int) -> Iterator[bytes]:
        rate = self.rates.get(len(self.asked), self.rate)
        self.asked.append((start, stop))
        try:
            for first in range(start, stop, 1000):
                last = min(stop, first + 1000)
                self.now_s += (last - first) / rate
                yield self.data[first:last]
        except GeneratorExit:
            self.closed += 1
            raise


def test_a_very_slow_request_is_abandoned_and_the_rest_requested_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line, policy = Line(400_000, 1e6, monkeypatch), RetryPolicy(retries=0)
    line.rates = {10: 5_000.0}
    for _ in range(11):
        assert read_range(line.get, 0, 400_000, name="far", retry_policy=policy) == line.data
    assert line.closed == 1
    (first, again) = line.asked[10:]
    assert first == (0, 400_000)
    assert again[1] == 400_000
    assert 0 < again[0] <= 12_000, "two seconds' worth is kept"


def test_a_connection_that_stays_slow_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    line, policy = Line(400_000, 1e6, monkeypatch), RetryPolicy(retries=0)
    for _ in range(10):
        read_range(line.get, 0, 400_000, name="far", retry_policy=policy)
    line.rate = 5_000.0
    for _ in range(3):
        assert read_range(line.get, 0, 400_000, name="far", retry_policy=policy) == line.data
    assert line.closed <= 8
    assert len(line.asked) == 13 + line.closed


def test_measured_rates_are_not_pickled() -> None:
    policy = RetryPolicy()
    for _ in range(20):
        policy.pace.note(10**6, 0.001)
    with pytest.raises(TooSlow):
        policy.pace.check(10, 3.0)
    pickle.loads(pickle.dumps(policy)).pace.check(10, 3.0)
