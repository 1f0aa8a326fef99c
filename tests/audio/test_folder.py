"""Sounds in folders. `tests/sources/test_media.py` has what they share with images and videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feedline import DataLoader, audio, collate
from tests.audio.sounds import RATE, decoded, encoded, sound, write_folder
from tests.datasets.contract import SourceContract


class TestContract(SourceContract):
    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> None:
        self.root = write_folder(tmp_path / "sounds", {"cat": 12, "dog": 12}, 0.1, 0.01)

    def make_source(self, **options: Any) -> audio.AudioFolder:
        return audio.AudioFolder(self.root, **options)

    def samples(self) -> list[Any]:
        files = [(label, number) for label in (0, 1) for number in sorted(range(12), key=str)]
        folders = [self.root / "cat", self.root / "dog"]
        return [(decoded((folders[label] / f"{number}.flac").read_bytes()), label) for label, number in files]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "sounds", {"cat": 5, "dog": 4})


def test_classes_and_other_files(root: Path) -> None:
    (root / "cat" / "readme.txt").write_text("hello")
    dataset = audio.AudioFolder(root)
    assert dataset.classes == ["cat", "dog"]
    assert repr(dataset) == "AudioFolder(9 samples of (file, class of 2), 1 other file left out)"
    assert audio.AudioFolder(root, labels=None)[0].shape == (1, RATE)


def test_the_rate_can_be_a_field(root: Path) -> None:
    (root / "cat" / "high.wav").write_bytes(encoded(sound(0.5, 2, 44_100), "WAV", 44_100))
    dataset = audio.AudioFolder(root, ("audio", "rate", "label"))
    assert {sample[1] for sample in dataset} == {RATE, 44_100}
    clip = audio.Compose([audio.RandomClip(0.25), audio.Resample(8000), audio.Mono()])
    converted = audio.AudioFolder(root, ["rate", "path", "audio"], transform=clip)
    assert {sample["rate"] for sample in converted} == {8000}
    assert {sample["audio"].shape for sample in converted} == {(1, 2000)}
    assert audio.AudioFolder(root, "rate")[0] == RATE
    assert audio.AudioFolder(root, "path")[0].endswith("0.flac")


def test_other_transforms_receive_the_whole_sample(root: Path) -> None:
    dataset = audio.AudioFolder(root, transform=lambda sample: (sample[0].shape, sample[1]))
    assert dataset[0] == ((1, RATE), 0)
    dataset.transform = audio.RandomClip(0.5)  # users may change it later
    assert dataset[0][0].shape == (1, 8000)


def test_padding_with_lengths(root: Path) -> None:
    loader = DataLoader(audio.AudioFolder(root), 3, collate_fn=collate.pad(axis=-1))
    padded, labels, lengths = next(iter(loader))
    assert padded.shape == (3, 1, 20_000)
    assert lengths.tolist() == [16_000, 18_000, 20_000]
    assert labels.tolist() == [0, 0, 0]
    mask = audio.length_mask(lengths, padded.shape[-1])
    assert mask.sum(1).tolist() == lengths.tolist()
    assert not padded[:, 0][~mask].any()
