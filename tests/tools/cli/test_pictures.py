from __future__ import annotations

import pickle
from pathlib import Path

import torch

from feedline.tools.cli.pictures import PATTERNS, SAMPLE_SIZE, PictureDataset, picture_path, write_pictures


def test_same_seed_gives_same_files(tmp_path: Path) -> None:
    for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
        write_pictures(tmp_path / name, 4, seed=seed)
    a, b, c = ([file.read_bytes() for file in sorted((tmp_path / name).iterdir())] for name in "abc")
    assert len(a) == 4
    assert a == b
    assert a != c


def test_existing_files_are_kept(tmp_path: Path) -> None:
    write_pictures(tmp_path, 1)
    picture_path(tmp_path, 0).write_bytes(b"mine")
    write_pictures(tmp_path, 3)
    assert picture_path(tmp_path, 0).read_bytes() == b"mine"


def test_samples_are_scaled_tensors_with_their_label(tmp_path: Path) -> None:
    write_pictures(tmp_path, 6)
    dataset = PictureDataset(tmp_path, [5, 0])
    image, label = dataset[0]
    assert len(dataset) == 2
    assert (label, dataset[1][1]) == (5 % len(PATTERNS), 0)
    assert image.dtype == torch.float32
    assert image.shape == (3, SAMPLE_SIZE[1], SAMPLE_SIZE[0])
    assert image.abs().max() <= 1
    assert image.is_contiguous()


def test_dataset_can_be_sent_to_a_worker(tmp_path: Path) -> None:
    write_pictures(tmp_path, 1)
    dataset = pickle.loads(pickle.dumps(PictureDataset(tmp_path, [0])))
    assert dataset[0][1] == 0
