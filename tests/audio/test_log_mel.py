from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from feedline import DataLoader, audio, collate
from feedline.errors import BadOption
from tests.audio.sounds import RATE, encoded, sound, write_folder


def hertz_to_mel(frequency: float, scale: str) -> float:
    if scale == "htk":
        return 1127.0 * float(np.log(1 + frequency / 700.0))
    if frequency < 1000:
        return 3 * frequency / 200
    return 15 + 27 * float(np.log(frequency / 1000)) / float(np.log(6.4))


def mel_to_hertz(mel: float, scale: str) -> float:
    if scale == "htk":
        return 700 * (float(np.exp(mel / 1127.0)) - 1)
    return 200 * mel / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)


def reference(samples: NDArray[np.float32], one: audio.LogMel) -> NDArray[np.float64]:
    """Return the mel spectrogram before its logarithm, from its definition: one window and frequency at a time."""
    window_length = one.win_length or one.n_fft
    hop, half = one.hop_length or window_length // 2, one.n_fft // 2
    left = (one.n_fft - window_length) // 2
    window = np.zeros(one.n_fft)
    window[left : left + window_length] = np.sin(np.pi * np.arange(window_length) / window_length) ** 2
    padded = np.concatenate([samples[half:0:-1], samples, samples[-2 : -half - 2 : -1]]).astype(np.float64)
    starts = range(0, len(padded) - one.n_fft + 1, hop)
    bins = np.arange(one.n_fft // 2 + 1)
    wave = np.exp(-2j * np.pi * np.outer(bins, np.arange(one.n_fft)) / one.n_fft)
    spectrum = np.stack([wave @ (padded[start : start + one.n_fft] * window) for start in starts], axis=1)
    energy = np.abs(spectrum) ** one.power
    low, high = hertz_to_mel(one.f_min, one.mel_scale), hertz_to_mel(one.f_max or one.rate / 2, one.mel_scale)
    edges = [
        mel_to_hertz(low + (high - low) * place / (one.n_mels + 1), one.mel_scale) for place in range(one.n_mels + 2)
    ]
    out = np.zeros((one.n_mels, len(starts)))
    for band in range(one.n_mels):
        first, middle, last = edges[band : band + 3]
        for number in bins:
            frequency = number * one.rate / 2 / (one.n_fft // 2)
            weight = min((frequency - first) / (middle - first), (last - frequency) / (last - middle))
            if weight > 0:
                out[band] += weight * energy[number] * (2 / (last - first) if one.norm else 1)
    return out


SETTINGS = [
    audio.LogMel(RATE),
    audio.LogMel(RATE, hop_length=160, n_mels=40),
    audio.LogMel(RATE, 512, 400, 160, 64, f_min=20, f_max=7600, mel_scale="slaney", norm="slaney"),
    audio.LogMel(8000, 256, n_mels=23, power=1.0),
    audio.LogMel(RATE, 401, hop_length=100, n_mels=20),
]


@pytest.mark.parametrize("one", SETTINGS, ids=range(len(SETTINGS)))
def test_values_follow_the_definition(one: audio.LogMel) -> None:
    samples = sound(0.1)[0] + np.random.default_rng(1).normal(0, 0.1, 1600).astype(np.float32)
    expected = reference(samples, one)
    for given in (samples, torch.from_numpy(samples)):
        found = one(given)
        assert type(found) is type(given)
        assert found.shape == expected.shape == (one.n_mels, one.steps(1600))
        assert np.abs(np.asarray(found) - np.log(np.maximum(expected, 1e-10))).max() < 1e-3


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_batch_gives_the_values_of_its_single_sounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = np.stack([np.roll(sound(0.5, 2), 500 * place, axis=1) for place in range(5)])
    one = audio.LogMel(RATE, n_mels=40)
    monkeypatch.setattr("feedline.audio.log_mel._BLOCK", 40_000)  # so that there are several blocks
    found = one(batch if kind == "numpy" else torch.from_numpy(batch))
    assert found.shape == (5, 2, 40, one.steps(8000))
    for place in range(5):
        for channel in range(2):
            assert np.allclose(found[place, channel], one(batch[place, channel]), atol=2e-3)
    none = one(batch[:0] if kind == "numpy" else torch.from_numpy(batch[:0]))
    assert tuple(none.shape) == (0, 2, 40, one.steps(8000))
    assert str(none.dtype).endswith("float32")


def test_logarithms_and_their_floor() -> None:
    natural = audio.LogMel(RATE, floor=1e-5)(sound(0.3))
    assert natural.min() >= np.log(1e-5) - 1e-4
    assert np.allclose(audio.LogMel(RATE, floor=1e-5, log="log10")(sound(0.3)) * np.log(10), natural, atol=1e-4)
    assert np.allclose(audio.LogMel(RATE, floor=1e-5, log="db")(sound(0.3)) * np.log(10) / 10, natural, atol=1e-4)
    silence = audio.LogMel(RATE)(np.zeros(4000, np.float32))
    assert np.allclose(silence, np.log(1e-10))


def test_the_rate_is_checked_in_a_pipeline() -> None:
    file = encoded(sound(1.0, 2, 44_100), rate=44_100)
    pipeline = audio.Compose([audio.Mono(), audio.Resample(RATE), audio.LogMel(RATE)])
    mel, label = pipeline((file, 3))
    assert (mel.shape, label) == ((1, 80, 81), 3)
    with pytest.raises(BadOption, match=r"44100 Hz. Put Resample\(16000\)"):
        audio.Compose([audio.LogMel(RATE)])(file)
    assert np.array_equal(
        audio.LogMel(RATE)({"flac": encoded(sound(1.0))})["flac"], audio.LogMel(RATE)(encoded(sound(1.0)))
    )


def test_on_a_loaders_device(tmp_path: Any) -> None:
    one = audio.LogMel(RATE, n_mels=16)
    dataset = audio.AudioFolder(write_folder(tmp_path / "data", {"a": 3, "b": 3}), ["audio", "label"])
    loader = DataLoader(dataset, 3, collate_fn=collate.pad(axis=-1), device="cpu", device_transform=one)
    first = next(iter(loader))
    assert first["audio"].shape == (3, 1, 16, one.steps(int(first["audio_lengths"].max())))
    assert torch.allclose(first["audio"][2], torch.from_numpy(one(dataset[2]["audio"])), atol=2e-3)
    assert first["label"].tolist() == [0, 0, 0]


def test_rejects_a_batch_with_several_fields_of_floats() -> None:
    batch = {"audio": torch.zeros(2, 4000), "target": torch.zeros(2, 5)}
    with pytest.raises(BadOption, match="'audio', 'target'"):
        audio.LogMel(RATE)(batch)
    found = audio.LogMel(RATE).on("audio")(batch)
    assert found["audio"].shape == (2, 80, 21)
    assert found["target"] is batch["target"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_fft": 0}, "n_fft=0"),
        ({"n_mels": 2.5}, "n_mels=2.5"),
        ({"win_length": 500}, "longer than n_fft=400"),
        ({"hop_length": -1}, "hop_length=-1"),
        ({"f_max": 9000}, "8000 Hz"),
        ({"f_min": 5000, "f_max": 400}, "interval"),
        ({"mel_scale": "bark"}, "mel_scale='bark'"),
        ({"norm": "area"}, "norm='area'"),
        ({"log": "log2"}, "log='log2'"),
        ({"floor": 0}, "floor=0"),
    ],
)
def test_bad_options_are_rejected(options: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        audio.LogMel(RATE, **options)
    with pytest.raises(BadOption, match=r"200 .* 201"):
        audio.LogMel(RATE)(np.zeros(200, np.float32))


def test_autocast_does_not_reduce_precision() -> None:
    loud = torch.from_numpy(1000 * sound(0.5))
    one = audio.LogMel(RATE)
    with torch.autocast("cpu", torch.bfloat16):
        inside = one(loud)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, one(loud))


def test_gradients_flow_after_a_first_use_in_inference_mode() -> None:
    one = audio.LogMel(RATE, n_mels=17)  # settings of no other test, since the tables are cached
    with torch.inference_mode():
        one(torch.from_numpy(sound(0.5).copy()))
    samples = torch.from_numpy(sound(0.5).copy()).requires_grad_()
    one(samples).sum().backward()
    assert samples.grad is not None


@pytest.mark.parametrize("kind", ["numpy", "torch", "list"])
def test_the_mask_is_true_where_there_is_sound(kind: str) -> None:
    lengths = {"numpy": np.array([2, 0, 3]), "torch": torch.tensor([2, 0, 3]), "list": [2, 0, 3]}[kind]
    mask = audio.length_mask(lengths, 4)
    assert isinstance(mask, torch.Tensor) == (kind == "torch")
    assert mask.tolist() == [[True, True, False, False], [False] * 4, [True, True, True, False]]
    assert audio.length_mask(lengths).shape == (3, 3)
    assert audio.length_mask(torch.zeros(0, dtype=torch.int64)).shape == (0, 0)
    assert audio.length_mask([]).shape == (0, 0)
