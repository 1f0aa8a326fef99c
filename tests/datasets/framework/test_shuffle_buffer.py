"""The buffer that shuffles the samples of tar and TFRecord streams."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.framework.shuffle_buffer import ShuffleBuffer


def order(count: int, width: int, key: int = 7) -> list[int]:
    buffer: ShuffleBuffer[int] = ShuffleBuffer(key, width)
    found = []
    for number in range(count):
        while buffer.is_ready(ended=False):
            found.append(buffer.take(ended=False))
        buffer.add(number)
    while buffer.is_ready(ended=True):
        found.append(buffer.take(ended=True))
    assert len(buffer) == 0
    return found


@given(st.integers(0, 300), st.integers(1, 200), st.integers(0, 2**64 - 1))
def test_every_item_comes_once_and_close_to_its_original_place(count: int, width: int, key: int) -> None:
    found = order(count, width, key)
    assert sorted(found) == list(range(count))
    for place, number in enumerate(found):
        assert abs(place - number) < width


def test_a_width_of_one_does_not_shuffle() -> None:
    assert order(50, 1) == list(range(50))


def test_it_is_well_mixed() -> None:
    """Neighbours end up far apart, and either may come first."""
    found = order(20_000, 1000)
    places = {number: place for place, number in enumerate(found)}
    first = sum(places[n] < places[n + 1] for n in range(0, 20_000, 2))
    assert 4700 < first < 5300
    apart = sorted(abs(places[n] - places[n + 1]) for n in range(19_999))
    assert 200 < apart[10_000] < 450  # the median difference of two random delays below 1,000 is 293
    shifts = Counter((place - number) // 100 for number, place in places.items() if 2000 < number < 18_000)
    assert all(count > 500 for shift, count in shifts.items() if -4 <= shift < 4)


def test_the_buffer_holds_about_half_its_width() -> None:
    buffer: ShuffleBuffer[int] = ShuffleBuffer(3, 1000)
    most = 0
    for number in range(20_000):
        buffer.add(number)
        while buffer.is_ready(ended=False):
            buffer.take(ended=False)
        most = max(most, len(buffer))
        assert len(buffer._held) <= 1000
    assert 450 < most < 600


def test_a_buffer_wider_than_the_stream_shuffles_the_whole_stream() -> None:
    """Early samples are as likely to come late as others, although the first batch then waits for many samples."""
    last = Counter(number // 100 for key in range(20) for number in order(400, 4000, key)[-100:])
    assert all(350 < last[quarter] < 650 for quarter in range(4))


@given(st.integers(1, 300), st.integers(1, 200), st.integers(0, 300), st.integers(0, 2**64 - 1))
def test_the_last_release_determines_which_items_came(count: int, width: int, taken: int, key: int) -> None:
    buffer: ShuffleBuffer[int] = ShuffleBuffer(key, width)
    for number in range(count):
        buffer.add(number)
    released = [buffer.take(ended=True) for _ in range(min(taken, count))]
    assert np.flatnonzero(buffer.came(0, count)).tolist() == sorted(released)


@given(st.integers(1, 300), st.integers(1, 200), st.integers(0, 300), st.integers(0, 2**64 - 1))
def test_a_buffer_is_rebuilt_from_its_oldest_item_and_its_last_release(
    count: int, width: int, taken: int, key: int
) -> None:
    expected = order(count, width, key)
    wanted = taken = min(taken, count)
    buffer: ShuffleBuffer[int] = ShuffleBuffer(key, width)
    for number in range(count):
        buffer.add(number)
        while buffer.is_ready(ended=False) and taken:
            buffer.take(ended=False)
            taken -= 1
        if not taken:
            break
    while taken:
        buffer.take(ended=True)
        taken -= 1
    oldest = buffer.oldest()
    first = buffer.number if oldest is None else oldest[0]
    assert buffer.number - first <= width
    again: ShuffleBuffer[int] = ShuffleBuffer(key, width, first, buffer.last)
    left = []
    for number in range(first, count):
        again.add(number)
        while again.is_ready(ended=False):
            left.append(again.take(ended=False))
    while again.is_ready(ended=True):
        left.append(again.take(ended=True))
    assert left == expected[len(expected) - len(left) :]
    assert len(left) == count - wanted
