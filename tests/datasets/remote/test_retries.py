from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.remote import blob as blob_module
from feedline.datasets.remote.blob import RetryPolicy, Transient, read_range
from feedline.errors import BadOption, SourceError

DATA = bytes(range(256)) * 8


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(0, 2000), st.integers(0, 2048))
def test_whatever_drops_the_bytes_are_those_of_the_range(pieces: list[int], start: int, stop: int) -> None:
    """Each number is what arrives before the next break."""
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
    found = read_range(get, start, stop, name="x", retry_policy=RetryPolicy(retries=100, pause_s=0))
    assert found == expected
    assert asked == sorted(asked)  # nothing is asked for again that has arrived


def test_progress_gives_all_tries_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_module, "_PROGRESS", 10)
    drops = iter([12, 0, 12, 0, 12, 0])

    def get(at: int, end: int) -> Iterator[bytes]:
        count = next(drops, None)
        yield DATA[at:end] if count is None else DATA[at : at + count]
        if count is not None:
            raise Transient("dropped")

    assert read_range(get, 0, 500, name="x", retry_policy=RetryPolicy(retries=2, pause_s=0)) == DATA[:500]


def test_the_last_failure_says_where_and_why() -> None:
    def get(at: int, end: int) -> Iterator[bytes]:
        if at == 0:
            yield DATA[:3]
        raise Transient("the cable was cut")

    with pytest.raises(SourceError, match=r"shard-7 cannot be read at byte 3: the cable was cut \(tried 3 times\)"):
        read_range(get, 0, 5, name="shard-7", retry_policy=RetryPolicy(retries=2, pause_s=0))


def test_an_early_end_is_a_break() -> None:
    with pytest.raises(SourceError, match=r"ended early \(tried once\)"):
        read_range(
            lambda at, end: iter([DATA[at : end - 1]] if at == 0 else []), 0, 5, name="x", retry_policy=RetryPolicy(0)
        )


def test_options_are_checked() -> None:
    for wrong in (-1, True, 1.5, "2"):
        with pytest.raises(BadOption, match="retries"):
            RetryPolicy(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="timeout_s"):
        RetryPolicy(timeout_s=0)
