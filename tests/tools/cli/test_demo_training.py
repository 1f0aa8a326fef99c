from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from feedline.tools.cli.demo_training import (
    PATTERNS,
    Epoch,
    Training,
    UsualPictures,
    picture_folder,
    write_pictures,
)
from feedline.tools.measure.harness import FEEDLINE, TORCH, Side
from feedline.tools.measure.jpegs import CROP

Batch = tuple[torch.Tensor, torch.Tensor]


class Batches:
    """A loader with two batches that draws a random number per epoch, as a shuffling loader does."""

    def __init__(self) -> None:
        self.num_workers = 0
        self.prefetch_factor: int | None = None
        self.drawn: list[float] = []

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Batch]:
        self.drawn.append(torch.rand(()).item())
        images = torch.zeros(3, 3, 224, 224)
        images[1] = 1
        yield images, torch.tensor([0, 1, 0])
        yield images[:2], torch.tensor([0, 1])


def seen(epoch: Epoch) -> tuple[int, int]:
    return epoch.images, epoch.right


def test_an_epoch_counts_images_and_waiting_time(generators_as_they_were: None) -> None:
    training, reports = Training(Batches()), list[tuple[int, int]]()
    epoch = training.epoch(lambda epoch: reports.append(seen(epoch)))
    assert [images for images, _ in reports] == [3, 5]
    assert seen(epoch) == reports[-1]
    assert 0 < epoch.waited_s < epoch.seconds
    assert 0 < epoch.stall < 1
    assert training.epochs == 1
    assert str(Epoch(images=50, right=25, seconds=2.0, waited_s=1.5)) == "25 images/s, waits 75 %, accuracy 50 %"


def test_every_loader_gets_the_same_network_and_random_numbers(generators_as_they_were: None) -> None:
    loaders = Batches(), Batches()
    trainings, found = [Training(loader) for loader in loaders], []
    for _ in range(3):  # in turns
        found.append([seen(training.epoch(lambda _: None)) for training in trainings])
    assert all(one == other for one, other in found)
    assert loaders[0].drawn == loaders[1].drawn
    assert len(set(loaders[0].drawn)) == 3


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
