from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from feedline.tools.cli.pictures import PATTERNS, UsualPictures, picture_folder, write_pictures
from feedline.tools.measure.jpegs import CROP

COUNT = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert len(list(write_pictures(tmp_path / "a", COUNT))) == COUNT
    return tmp_path / "a"


def test_every_run_draws_the_same_files(folder: Path) -> None:
    list(write_pictures(folder.parent / "b", COUNT))
    a, b = ([file.read_bytes() for file in sorted(one.iterdir())] for one in (folder, folder.parent / "b"))
    assert a == b
    assert len(set(a)) == COUNT


def test_both_datasets_have_the_same_samples_except_for_the_crop(folder: Path) -> None:
    usual: Any = UsualPictures(folder)
    ours: Any = picture_folder(folder)
    assert len(usual) == len(ours) == COUNT
    for number in range(COUNT):
        (image, label), sample = usual[number], ours[number]
        assert label == int(sample[1]) == number % len(PATTERNS)
        for found in (image, torch.as_tensor(sample[0])):
            assert found.shape == (3, CROP, CROP)
            assert found.dtype == torch.float32
            assert 0.3 < found.std() < 2  # normalised
        again = usual[number][0]
        assert not torch.equal(image, again)
