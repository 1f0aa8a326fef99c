"""Videos in folders and in other sources, through the loader on every engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from feedline import images, video
from feedline.errors import BadOption, SourceChanged, SourceError
from tests.datasets.contract import SourceContract
from tests.video.files import encoded, every_frame

COUNT = 24
CENTER = video.Compose([video.CenterClip(3, stride=2), images.Resize(16)])
RANDOM = video.Compose(
    [video.RandomClip(4, stride=2), images.RandomResizedCrop(16), images.HorizontalFlip(), images.Normalize()],
    axes="CTHW",
)


def content(number: int) -> bytes:
    return encoded(codec="mpeg4", count=12 + 2 * (number % 8), options=(), width=64, height=48)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    for number in range(COUNT):
        path = folder / f"{number % 2}" / f"{number:02d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    (folder / "0" / "notes.txt").write_text("no video")
    return folder


class TestContract(SourceContract):
    takes_transform = False  # it always has one: without a transform, samples are videos that are not decoded

    @pytest.fixture(autouse=True)
    def store(self, root: Path) -> None:
        self.root = root

    def make_source(self, **options: Any) -> video.VideoFolder:
        return video.VideoFolder(self.root, transform=CENTER, **options)

    def samples(self) -> list[Any]:
        return [(CENTER(content(number)), label) for label in range(2) for number in range(label, COUNT, 2)]


def test_samples_and_classes(root: Path) -> None:
    dataset = video.VideoFolder(root)
    assert repr(dataset) == "VideoFolder(24 samples of (file, class of 2), 1 other file left out)"
    assert dataset.classes == ["0", "1"]
    one, label = dataset[13]
    assert (label, len(one)) == (1, 12 + 2 * (3 % 8))
    assert np.array_equal(one.frames([5]), every_frame(content(3))[[5]])
    assert [*video.VideoFolder(root, "label", index=False)] == dataset.targets.tolist()  # type: ignore[union-attr]


def test_any_function_can_be_a_transform_and_an_index_is_optional(root: Path) -> None:
    without = video.VideoFolder(root, transform=CENTER, index=False)
    assert all(np.array_equal(without[place][0], CENTER(content(2 * place))) for place in (0, 5))
    assert video.VideoFolder(root, transform=lambda sample: (len(sample[0]), sample[1]))[0] == (12, 0)
    assert video.VideoFolder(root, labels=None, transform=len)[0] == 12


def test_a_video_that_changes_while_in_use_is_detected(root: Path) -> None:
    dataset = video.VideoFolder(root, transform=RANDOM)
    (root / "0" / "00.mp4").write_bytes(content(1))
    with pytest.raises(SourceChanged, match=r"00\.mp4"):
        dataset[0]
    os.unlink(root / "0" / "00.mp4")
    with pytest.raises(SourceError, match=r"00\.mp4"):
        dataset[0]


def test_bad_options_are_rejected(root: Path) -> None:
    with pytest.raises(BadOption, match="index=3"):
        video.VideoFolder(root, index=3)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="root="):
        video.VideoFolder([root])  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="has no files"):
        video.VideoFolder(root, extensions=".mov", labels=None)
