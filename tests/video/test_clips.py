from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption, SourceError
from feedline.video import CenterClip, ClipSampler, EvenClips, EvenFrames, RandomClip, Timeline
from tests.drawing import with_key


def constant(count: int, rate: int = 30) -> Timeline:
    return Timeline(np.arange(count), Fraction(1, rate))


# Any: options of samplers.
def drawn(sampler: ClipSampler, timeline: Timeline, key: int = 0) -> Any:
    return with_key(key, lambda: sampler.pick(timeline))


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 5), st.sampled_from(["hold", "loop"]), st.integers(0, 99))
def test_a_clip_fits_its_video(count: int, frames: int, stride: int, short: str, key: int) -> None:
    timeline = constant(count)
    for sampler in (
        RandomClip(frames, stride=stride, short=short),
        CenterClip(frames, stride=stride, short=short),
        EvenClips(frames, 3, stride=stride, short=short),
        RandomClip(frames, fps=7.5, short=short),
        EvenClips(frames, 3, fps=12, short=short),
        EvenFrames(frames, random=True),
        EvenFrames(frames),
    ):
        clip = drawn(sampler, timeline, key)
        assert clip.shape == ((3, frames) if isinstance(sampler, EvenClips) else (frames,))
        assert clip.min() >= 0
        assert clip.max() < count
    if (frames - 1) * stride < count:
        for sampler in (RandomClip(frames, stride=stride), CenterClip(frames, stride=stride)):
            assert (np.diff(drawn(sampler, timeline, key)) == stride).all()


def test_every_position_is_drawn() -> None:
    begins = [int(drawn(RandomClip(4, stride=2), constant(12), key)[0]) for key in range(600)]
    counts = np.bincount(begins, minlength=6)
    assert len(counts) == 6
    assert counts.min() > 60


def test_center_and_even_clips() -> None:
    assert CenterClip(4, stride=2).pick(constant(11)).tolist() == [2, 4, 6, 8]
    assert EvenClips(2, 1, stride=3).pick(constant(8)).tolist() == [[2, 5]]
    even = EvenClips(4, 5).pick(constant(100))
    assert even[0].tolist() == [0, 1, 2, 3]
    assert even[-1].tolist() == [96, 97, 98, 99]
    assert np.ptp(np.diff(even[:, 0])) <= 1


def test_a_clip_keeps_its_rate_for_any_rate_of_the_video() -> None:
    for rate in (10, 25, 30, 60):
        timeline = constant(4 * rate, rate)
        times = timeline.times_s[CenterClip(16, fps=5).pick(timeline)]
        assert np.abs(np.diff(times) - 0.2).max() <= 1 / rate + 1e-6
    uneven = Timeline(np.array([0, 100, 900, 1000, 1100]), Fraction(1, 1000))
    assert CenterClip(5, fps=4, short="hold").pick(uneven).tolist() == [0, 1, 1, 1, 3]
    assert CenterClip(4, fps=30).pick(constant(4)).tolist() == [0, 1, 2, 3]
    assert CenterClip(4, fps=30, short="error").pick(constant(4)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("short", "expected"), [("hold", [0, 2, 3, 3, 3]), ("loop", [0, 2, 0, 2, 0])], ids=["hold", "loop"]
)
def test_short_videos(short: str, expected: list[int]) -> None:
    for sampler in (RandomClip(5, stride=2, short=short), CenterClip(5, stride=2, short=short)):
        assert drawn(sampler, constant(4)).tolist() == expected
    assert CenterClip(5, fps=15, short=short).pick(constant(4)).tolist() == expected


@pytest.mark.parametrize("distance", [{"stride": 2}, {"fps": 15}])
def test_short_videos_can_be_errors(distance: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match=r"4 frames .*0\.13 s.*RandomClip"):
        RandomClip(5, short="error", **distance).pick(constant(4))


def test_even_frames_cover_the_whole_video() -> None:
    timeline = constant(100)
    assert EvenFrames(4).pick(timeline).tolist() == [12, 37, 62, 87]
    assert EvenFrames(8).pick(constant(3)).tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    for key in range(50):
        clip = drawn(EvenFrames(4, random=True), timeline, key)
        assert (clip // 25).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomClip(0), "frames=0"),
        (lambda: RandomClip(True), "frames=True"),
        (lambda: RandomClip(4, stride=0), "stride=0"),
        (lambda: RandomClip(4, stride=1, fps=3), "stride=1.*fps=3"),
        (lambda: RandomClip(4, fps=0), "fps=0"),
        (lambda: RandomClip(4, fps=float("nan")), "fps=nan"),
        (lambda: RandomClip(4, fps="many"), "fps='many'"),  # type: ignore[arg-type]
        (lambda: RandomClip(4, short="pad"), "short='pad'"),
        (lambda: EvenClips(4, 0), "clips=0"),
    ],
)
def test_bad_options_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make()
