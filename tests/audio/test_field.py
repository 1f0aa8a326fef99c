from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from feedline import audio
from feedline.audio.field import audio_field
from feedline.errors import BadOption, CorruptSource
from tests.audio.sounds import encoded, sound

FILE = encoded(sound(0.1))


class Pair(NamedTuple):
    sound: bytes
    label: int


@pytest.mark.parametrize(
    ("sample", "field"),
    [
        (FILE, None),
        ("a/path.flac", None),
        (sound(), None),
        ({"bytes": FILE, "path": "a.flac"}, None),
        ({"array": sound()[0], "sampling_rate": 16_000, "path": "a"}, None),
        ((FILE, 3), 0),
        ([3, FILE], 1),
        (Pair(FILE, 3), 0),
        ((Path("a.flac"), "a text"), 0),
        ({"flac": FILE, "txt": "a text", "cls": 3}, "flac"),
        ({"audio": {"bytes": FILE, "path": None}, "text": "hello"}, "audio"),
        ({"flac": FILE, "embedding": np.zeros(8, np.float32)}, "flac"),
        ({"sound": sound(), "length": np.array([3, 4])}, "sound"),
        ({"sound": torch.zeros(2, 100), "label": torch.zeros(2, dtype=torch.int64)}, "sound"),
        ({"png": b"\x89PNG....", "wav": encoded(sound(0.1), "WAV")}, "wav"),
    ],
)
def test_the_sound_is_found(sample: Any, field: Any) -> None:
    assert audio_field(sample) == field


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"a": FILE, "b": FILE}, "Several fields hold sound: 'a', 'b'"),
        ({"path": "a.flac", "label": 3}, "No field of the sample holds sound"),
        ((sound(), sound()), "Several"),
    ],
)
def test_rejects_samples_with_no_or_several_sounds(sample: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        audio_field(sample)


@pytest.mark.parametrize("damaged", [b"", b"<html>404</html>"])
def test_damage_of_the_only_file_of_a_sample_is_reported(damaged: bytes) -> None:
    with pytest.raises(CorruptSource):
        audio.Compose([])({"flac": damaged, "txt": "a text"})


def test_the_field_can_be_named() -> None:
    assert audio_field({"a": FILE, "b": FILE}, "b") == "b"
    with pytest.raises(BadOption, match="it has 'a'"):
        audio_field({"a": FILE}, "c")
