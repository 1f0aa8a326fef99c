from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from feedline.audio.clip import ArraySound, Clip, render
from feedline.audio.decoding import AudioInfo
from feedline.errors import BadOption, CorruptSource
from tests.audio.sounds import Sound, sound

RATES = [8000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000, 44_101]


def of(seconds: float, rate: int, channels: int = 1) -> ArraySound:
    return ArraySound(sound(seconds, channels, rate), rate)


@given(
    st.sampled_from(RATES),
    st.sampled_from(RATES),
    st.sampled_from(["LQ", "MQ", "HQ", "VHQ"]),
    st.floats(0.01, 2.5),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.1, 0.9),
)
def test_a_clip_equals_a_slice_of_the_resampled_sound(
    source: int, rate: int, quality: str, length: float, position: float, seconds: float
) -> None:
    whole = of(length, source)
    clip = Clip(whole.info, rate, quality=quality, seconds=seconds, position=position)
    samples = render(whole, clip)
    resampled = soxr.resample(sound(length, 1, source).T, source, rate, quality=quality).T
    frames = round(seconds * rate)
    assert samples.shape == (1, frames)
    assert clip.total == resampled.shape[1]
    start, stop = clip.window()
    assert 0 <= start <= stop <= clip.total
    assert np.abs(samples[:, : stop - start] - resampled[:, start:stop]).max() < 1e-5
    assert not samples[:, stop - start :].any()


@pytest.mark.parametrize(
    ("frames", "source", "rate"), [(60_000, 24_000, 11_025), (3, 16_000, 8000), (7, 48_000, 24_000)]
)
def test_half_a_frame_is_rounded_like_soxr_does(frames: int, source: int, rate: int) -> None:
    assert 2 * frames * rate % (2 * source) == source
    resampled = soxr.resample(np.zeros(frames, np.float32), source, rate)
    assert Clip(AudioInfo("WAV", source, 1, frames), rate).total == len(resampled)


@pytest.mark.parametrize("frames", [1, 2, 3])
@pytest.mark.parametrize("short", ["pad", "repeat", "keep"])
def test_a_sound_of_less_than_half_a_frame_keeps_one_frame(frames: int, short: str) -> None:
    whole = ArraySound(np.full((2, frames), 0.5, np.float32), 48_000)
    first = soxr.resample(np.pad(np.full(frames, 0.5, np.float32), (0, 100)), 48_000, 6000)[0]
    assert first > 0.01
    samples = render(whole, Clip(whole.info, 6000, seconds=1.0 if short == "keep" else None, short=short))
    assert samples == pytest.approx(np.full((2, 1), first), abs=1e-5)


class Recorded:
    """A sound that records what is read."""

    name = "recorded"

    def __init__(self, inner: ArraySound) -> None:
        self._inner = inner
        self.info = inner.info
        self.read_frames = 0

    def read(self, start: int, stop: int) -> Sound:
        assert 0 <= start < stop <= self.info.frames
        self.read_frames += stop - start
        return self._inner.read(start, stop)


@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000, 8000])
def test_only_the_clip_and_a_margin_are_read(rate: int) -> None:
    whole = Recorded(of(30.0, 44_100))
    render(whole, Clip(whole.info, rate, seconds=1.0, position=0.5))
    margin = 0 if rate == 44_100 else 2 * 256 * 44_100 // min(rate, 44_100) + 441 + 1
    assert 44_100 <= whole.read_frames <= 44_100 + margin


@pytest.mark.parametrize(
    ("short", "expected"),
    [("pad", [1, 2, 3, 0, 0, 0, 0, 0]), ("repeat", [1, 2, 3, 1, 2, 3, 1, 2]), ("keep", [1, 2, 3])],
)
def test_sounds_shorter_than_the_clip(short: str, expected: list[int]) -> None:
    whole = ArraySound(np.array([[1, 2, 3], [-1, -2, -3]], np.float32), 4)
    samples = render(whole, Clip(whole.info, 4, seconds=2, position=0.7, short=short))
    assert samples.tolist() == [expected, [-value for value in expected]]


def test_rejects_a_clip_larger_than_a_sample_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_MAX_SAMPLE_BYTES", "1MB")
    whole = of(0.5, 16_000)
    with pytest.raises(CorruptSource, match="FEEDLINE_MAX_SAMPLE_BYTES"):
        render(whole, Clip(whole.info, 16_000, seconds=60))


@pytest.mark.parametrize("samples", [np.zeros(0, np.float32), np.zeros((1, 2, 3), np.float32), np.zeros(4, np.int16)])
def test_rejects_arrays_that_are_not_sounds(samples: Any) -> None:
    with pytest.raises(BadOption, match="array of floats"):
        ArraySound(samples, 16_000)
