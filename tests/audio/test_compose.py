from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
import torch
from hypothesis import given
from hypothesis import strategies as st

import feedline
from feedline import audio
from feedline.errors import BadOption, MissingExtra
from tests.audio.sounds import RATE, Sound, decoded, encoded, sound
from tests.drawing import with_key

STEREO = encoded(sound(3.0, 2, 44_100), rate=44_100)
TRAIN = [audio.RandomClip(0.75), audio.Resample(RATE), audio.Mono()]


def by_hand(data: bytes, pipeline: audio.Compose, start: int) -> Sound:
    """Return the clip in the usual way: decode, mix and resample the whole file, and then cut it."""
    mixed = decoded(data).mean(axis=0)
    frames = round(0.75 * RATE)
    whole: Sound = soxr.resample(mixed, 44_100, RATE)
    return whole[start : start + frames][None]


@given(st.integers(0, 1 << 30), st.permutations(TRAIN))
def test_a_clip_equals_that_of_the_whole_file_for_any_order_of_transforms(key: int, transforms: Any) -> None:
    pipeline = audio.Compose(transforms)
    samples = with_key(key, lambda: pipeline(STEREO))
    position = with_key(key, lambda: feedline.rng().random())
    start = int(position * (3 * RATE - round(0.75 * RATE) + 1))
    assert samples.shape == (1, 12_000)
    assert np.abs(samples - by_hand(STEREO, pipeline, start)).max() < 1e-5


def test_a_sound_may_have_any_form(tmp_path: Path) -> None:
    data = encoded(sound(1.0))
    path = tmp_path / "a.flac"
    path.write_bytes(data)
    expected = decoded(data)
    pipeline = audio.Compose([audio.Mono()], rate=RATE)
    stored = {"array": expected[0], "sampling_rate": RATE, "path": None}
    listed = {**stored, "array": expected[0].tolist()}
    file = {"bytes": data, "path": "elsewhere.flac"}
    only_path = {"bytes": None, "path": str(path)}
    with path.open("rb") as opened:
        arrays = (expected, torch.from_numpy(expected), stored, listed)
        for form in (data, path, str(path), opened, file, only_path, *arrays):
            assert np.array_equal(pipeline(form), expected)
    assert [one.shape for one in pipeline({"audio": [file, file]})["audio"]] == [(1, RATE)] * 2


def test_functions_receive_the_array_at_their_position() -> None:
    seen: list[tuple[int, ...]] = []

    def louder(samples: Sound) -> Sound:
        seen.append(samples.shape)
        return samples * 2

    pipeline = audio.Compose([audio.RandomClip(1.0), louder, audio.CenterClip(0.5), audio.Resample(8000), louder])
    assert pipeline(encoded(sound(2.0))).shape == (1, 4000)
    assert seen == [(1, 16_000), (1, 4000)]


def test_a_second_clip_or_rate_is_a_separate_stage() -> None:
    data = encoded(sound(3.0))
    twice = audio.Compose([audio.CenterClip(2.0), audio.Resample(8000), audio.CenterClip(1.0), audio.Resample(RATE)])
    once = audio.Compose([audio.CenterClip(1.0)])
    assert twice(data).shape == once(data).shape == (1, RATE)
    assert np.corrcoef(twice(data)[0, 500:-500], once(data)[0, 500:-500])[0, 1] > 0.9


class Library:
    """Stands in for a transform of a library that is not installed; its module decides which."""

    def __call__(self, *samples: Any, **named: Any) -> Any:
        return [*samples, named]


def test_transforms_of_other_libraries_receive_what_they_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(sound(0.5))
    monkeypatch.setattr(Library, "__module__", "torchaudio.transforms")
    (tensor, named) = audio.Compose([Library()])(data)
    assert torch.equal(tensor, torch.from_numpy(decoded(data)))
    assert named == {}
    monkeypatch.setattr(Library, "__module__", "audiomentations.core")
    (named,) = audio.Compose([audio.Resample(8000), Library()])(data)
    assert named["sample_rate"] == 8000
    assert named["samples"].shape == (1, 4000)


def test_the_rate_of_an_array_must_be_known() -> None:
    with pytest.raises(BadOption, match=r"rate=16000"):
        audio.RandomClip(1.0)(sound())
    assert audio.Compose([])(sound()).shape == sound().shape


@pytest.mark.parametrize("late", [audio.RandomClip(1.0), audio.Resample(8000), audio.Mono()])
def test_rejects_transforms_of_sound_after_a_spectrogram(late: Any) -> None:
    with pytest.raises(BadOption, match=r"comes after LogMel.*Put it before"):
        audio.Compose([audio.LogMel(RATE), late])


def test_it_can_be_pickled_and_printed() -> None:
    pipeline = audio.Compose([*TRAIN, audio.LogMel(RATE)], rate=8000).on(0)
    again = pickle.loads(pickle.dumps(pipeline))
    assert repr(again) == repr(pipeline)
    assert repr(audio.Compose(TRAIN).on("x")) == (
        "Compose([RandomClip(seconds=0.75, short='pad'), Resample(rate=16000, quality='HQ'), Mono()]).on('x')"
    )


@pytest.mark.parametrize("rate", [None, RATE])
def test_a_function_that_works_in_place_does_not_change_the_datasets_array(rate: int | None) -> None:
    samples = sound(0.5).copy()
    halved = audio.Compose([lambda part: np.multiply(part, 0.5, out=part)], rate=rate)(samples)
    assert np.array_equal(samples, sound(0.5))
    assert np.array_equal(halved, samples / 2)


@pytest.mark.parametrize("inner", [audio.Compose([audio.Mono()], rate=RATE), audio.Compose([]).on("left")])
def test_a_pipeline_inside_another_does_not_lose_its_options(inner: audio.Compose) -> None:
    with pytest.raises(BadOption, match="Pass rate= to that"):
        audio.Compose([inner, audio.LogMel(RATE)])


def test_random_clips_are_anywhere_and_center_clips_in_the_middle() -> None:
    counted = audio.Compose([audio.RandomClip(1)], rate=10)
    samples = np.arange(40, dtype=np.float32)
    starts = [int(with_key(key, lambda: counted(samples))[0, 0]) for key in range(600)]
    assert set(starts) == set(range(31))
    assert np.bincount(starts).max() < 60  # about 19 of each
    assert audio.Compose([audio.CenterClip(1)], rate=10)(samples)[0].tolist() == list(range(15, 25))


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
        *((lambda rate=rate: audio.Compose([], rate=rate), "rate=") for rate in (0, -5, 2.5, True)),
        *((lambda one=one: audio.Compose([one]), "not a transform") for one in (3, "mono", None)),
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
