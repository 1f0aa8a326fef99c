from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedline.video import Timeline

steps = st.lists(st.integers(1, 10_000), min_size=1, max_size=50)


@given(steps, st.integers(-(10**12), 10**12))
def test_each_frame_is_shown_at_its_time(gaps: list[int], first: int) -> None:
    stamps = first + np.cumsum(gaps)
    timeline = Timeline(stamps, Fraction(1, 90_000))
    assert timeline.at(timeline.times_s).tolist() == list(range(len(stamps)))
    assert timeline.times_s[0] == 0


@given(steps, st.floats(-5, 5))
def test_the_frame_shown_is_the_last_one_that_started(gaps: list[int], second: float) -> None:
    timeline = Timeline(np.cumsum(gaps), Fraction(1, 1000))
    place = int(timeline.at(second))
    began = [one for one in range(len(timeline)) if timeline.times_s[one] <= second + 1e-6]
    assert place == (began[-1] if began else 0)


def test_a_single_frame_has_no_rate() -> None:
    timeline = Timeline(np.array([7]), Fraction(1, 10))
    assert (len(timeline), timeline.duration_s, timeline.fps) == (1, 0.0, 0.0)
    assert timeline.at([0, 3]).tolist() == [0, 0]
    assert repr(timeline) == "Timeline(1 frames in 0.00 s)"
