from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from feedline.tools.cli.demo_training import PATTERNS, Training, UsualPictures, picture_folder, write_pictures
from feedline.tools.measure.harness import FEEDLINE, TORCH, Side
from feedline.tools.measure.jpegs import CROP


@pytest.mark.slow
@pytest.mark.parametrize("library", [TORCH, FEEDLINE])
def test_the_network_learns(library: str, tmp_path: Path, generators_as_they_were: None) -> None:
    count = len(list(write_pictures(tmp_path / "pictures", 160)))
    dataset = {TORCH: UsualPictures, FEEDLINE: picture_folder}[library](tmp_path / "pictures")
    training = Training(Side(library).open(dataset, batch_size=16, shuffle=True))
    epochs = [training.epoch(lambda _: None) for _ in range(6)]
    assert {epoch.images for epoch in epochs} == {count}
    assert epochs[-1].right / count > 2 / len(PATTERNS)


def test_both_datasets_have_the_same_samples_except_for_the_crop(tmp_path: Path) -> None:
    count = len(list(write_pictures(tmp_path / "a", 6)))
    usual: Any = UsualPictures(tmp_path / "a")
    ours: Any = picture_folder(tmp_path / "a")
    assert len(usual) == len(ours) == count
    for number in range(count):
        (image, label), sample = usual[number], ours[number]
        assert label == int(sample[1]) == number % len(PATTERNS)
        for found in (image, torch.as_tensor(sample[0])):
            assert found.shape == (3, CROP, CROP)
            assert found.dtype == torch.float32
            assert 0.3 < found.std() < 2  # normalised
        again = usual[number][0]
        assert not torch.equal(image, again)
