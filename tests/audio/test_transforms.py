from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import soxr

from feedline import audio
from feedline.errors import BadOption, MissingExtra
from feedline.randomness.scope import Scope, enter
from feedline.types import Draw
from tests.audio.sounds import RATE, encoded, sound


def drawn(transform: Any, sample: Any, key: int) -> Any:
    """Return the result with the random numbers of this key."""
    scope = Scope()
    scope.begin(Draw(key))
    before = enter(scope)
    try:
        return transform(sample)
    finally:
        enter(before)


def test_random_clips_are_anywhere_and_follow_from_the_seed() -> None:
    counted = audio.Compose([audio.RandomClip(1)], rate=10)
    samples = np.arange(40, dtype=np.float32)
    starts = [int(drawn(counted, samples, key)[0, 0]) for key in range(600)]
    assert set(starts) == set(range(31))
    assert starts == [int(drawn(counted, samples, key)[0, 0]) for key in range(600)]
    assert np.bincount(starts).max() < 60  # about 19 of each


def test_a_center_clip_is_in_the_middle() -> None:
    middle = audio.Compose([audio.CenterClip(1)], rate=10)
    assert middle(np.arange(40, dtype=np.float32))[0].tolist() == list(range(15, 25))


def test_transforms_work_alone() -> None:
    file = encoded(sound(1.0, 2, 44_100), rate=44_100)
    assert audio.RandomClip(0.5)(file).shape == (2, 22_050)
    assert audio.CenterClip(2.0, short="keep")(file).shape == (2, 44_100)
    assert audio.Mono()(file).shape == (1, 44_100)
    resampled = audio.Resample(RATE)(file)
    whole, _ = audio.decode_audio(file)
    assert np.abs(resampled - soxr.resample(whole.T, 44_100, RATE).T).max() < 1e-5


def test_resampling_to_the_same_rate_changes_nothing() -> None:
    file = encoded(sound(1.0))
    assert np.array_equal(audio.Resample(RATE)(file), audio.decode_audio(file)[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: audio.RandomClip(0), "seconds=0"),
        (lambda: audio.RandomClip(-1), "seconds=-1"),
        (lambda: audio.CenterClip(float("inf")), "seconds=inf"),
        (lambda: audio.RandomClip(1, short="loop"), "short='loop'"),
        (lambda: audio.Resample(0), "rate=0"),
        (lambda: audio.Resample(16_000.5), "rate=16000.5"),  # type: ignore[arg-type]  # on purpose
        (lambda: audio.Resample(16_000, quality="best"), "quality='best'"),
    ],
)
def test_bad_options_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make()


def test_the_error_without_soxr_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    assert audio.Resample(RATE)(encoded(sound(0.1))).shape == (1, 1600)
    with pytest.raises(MissingExtra, match=r"feedline\[audio\]"):
        audio.Resample(8000)(encoded(sound(0.1)))
