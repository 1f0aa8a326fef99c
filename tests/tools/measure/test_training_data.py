from __future__ import annotations

from pathlib import Path

import pytest

from feedline.datasets import ImageFolder, TarDataset
from feedline.tools.measure.jpegs import CROP
from feedline.tools.measure.training_data import ByHand, write_images


@pytest.mark.slow
def test_folder_and_shards_contain_the_same_images(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("cv2")
    write_images(tmp_path, 12)
    folder = ImageFolder(tmp_path / "folder", decode="bytes", allow_empty=True)
    shards = TarDataset(str(tmp_path / "shards" / "*.tar"), ("jpg", "cls"), decode=False)
    assert len(folder) == len(shards) == 12
    assert sorted(data for data, _ in folder) == sorted(data for data, _ in shards)
    image, label = ByHand(tmp_path, "opencv")[1]
    assert image.shape == (CROP, CROP, 3)
    assert label == 0
