"""Targets follow every transform that moves pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline import images
from feedline.images.geometry import View
from feedline.images.steps.step import after
from feedline.images.targets.path import IDENTITY, parts_of
from tests.images.targets.moves import Padded, Warped

pytestmark = pytest.mark.usefixtures("fixed_draws")

HEIGHT, WIDTH = 60, 80

# Any: transforms of all classes.
EVERY: list[list[Any]] = [
    [images.Resize((45, 71))],
    [images.Resize(100)],
    [images.CenterCrop(50)],
    [images.RandomResizedCrop(48, scale=(0.3, 1))],
    [images.RandomCrop(50)],
    [images.RandomCrop((60, 60), padding=8)],
    [images.RandomCrop(96, pad_if_needed=True)],
    [images.Pad((3, 4, 15, 6))],
    [images.HorizontalFlip()],
    [images.VerticalFlip()],
    [images.RandomRotation(180)],
    [images.RandomRotation(30, "bilinear", expand=True, center=(10, 20))],
    [images.RandomAffine(20, translate=(0.2, 0.2), scale=(0.7, 1.3), shear=(-20, 20, -20, 20))],
    [images.RandomChoice([images.VerticalFlip(1.0), images.RandomRotation(90), images.Pad(5)])],
    [images.RandomApply([images.RandomRotation(90), images.HorizontalFlip(1.0)])],
    [images.RandomRotation(20), images.RandomResizedCrop(64, scale=(0.5, 1)), images.RandomAffine(10), images.Pad(4)],
    [images.RandomCrop(48), images.RandomRotation(20), images.Resize((70, 90)), images.VerticalFlip()],
    [images.RandAugment(), images.RandomErasing(1.0)],
    [images.TrivialAugmentWide()],
    [images.AutoAugment()],
]


@pytest.mark.parametrize("transforms", EVERY, ids=str)
def test_targets_follow_every_transform(transforms: list[Any]) -> None:
    colors = any("Augment" in repr(one) for one in transforms)  # changes colours as well
    targets = {
        "mask": images.Mask(),
        "boxes": images.Boxes(min_size=0, fields=()),
        "point": images.Keypoints(),
    }
    pipeline = images.Compose(transforms, targets=targets)
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[22:40, 30:56] = 1
    sample = {
        "image": np.repeat(mask[..., None] * np.uint8(255), 3, 2),
        "mask": mask,
        "boxes": [[30, 22, 56, 40]],
        "point": [[43, 31, 2]],
    }
    for _ in range(25):
        found = pipeline.on("image")(sample)
        inside = found["mask"] > 0
        bright = inside if colors else found["image"][..., 0] > 127
        assert found["mask"].shape == found["image"].shape[:2]
        assert (bright != inside).mean() < 0.06  # without the edges, which are interpolated
        rows, columns = np.nonzero(inside)
        (box,), ((x, y, visible),) = found["boxes"], found["point"]
        if not len(rows):
            continue
        edges = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        assert np.all(np.array(edges[:2]) >= box[:2] - 1.5)
        assert np.all(np.array(edges[2:]) <= box[2:] + 1.5)
        if visible:
            height, width = inside.shape
            assert inside[int(np.clip(y, 0, height - 1)), int(np.clip(x, 0, width - 1))]


def test_the_moves_of_the_parts_compose_to_the_whole_move() -> None:
    view = View(WIDTH, HEIGHT)
    for transform in (images.RandomResizedCrop(40), images.HorizontalFlip(1.0), Warped(30, 1.1, 0.2)):
        transform.draw(view)
    Padded(1, 2, 3, 4, "constant").draw(view)
    view.mirror()
    parts = list(parts_of([view]))
    matrix = IDENTITY
    for part, _, _ in parts:
        matrix = after(matrix, part)
    assert np.allclose(matrix, view.matrix)
    assert parts[-1][1:] == (view.width, view.height)
