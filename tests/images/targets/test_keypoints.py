"""Keypoints that leave the image, that change sides in a mirror, and of any shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from feedline import images
from feedline.errors import BadOption
from tests.images.targets.moves import Padded

HEIGHT, WIDTH = 60, 80
IMAGE = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
CROP = [images.CenterCrop((HEIGHT, 40))]  # columns 20 to 60


# Any, throughout: transforms, and points in any form.
def moved(points: Any, transforms: Any, image: Any = IMAGE, **options: Any) -> Any:
    pipeline = images.Compose(transforms, targets={"points": images.Keypoints(**options)})
    return pipeline({"image": image, "points": points})


def test_points_outside_of_the_image_become_invisible() -> None:
    points = [[19, 5, 2], [21, 5, 2], [40, 5, 1], [61, 5, 2], [0, 0, 0]]
    assert moved(points, CROP)["points"].tolist() == [[-1, 5, 0], [1, 5, 2], [20, 5, 1], [41, 5, 0], [0, 0, 0]]
    found = moved([one[:2] for one in points], CROP)["points"]
    assert found.tolist() == [[-1, 5], [1, 5], [20, 5], [41, 5], [-20, 0]]


def test_points_that_were_cropped_away_do_not_come_back() -> None:
    found = moved([[10, 5, 2], [30, 5, 2]], [*CROP, Padded(20, 0, 0, 0, "constant")])["points"]
    assert found.tolist() == [[10, 5, 0], [30, 5, 2]]


def test_mirroring_swaps_left_and_right_points() -> None:
    points = np.array([[[1, 1, 2], [2, 2, 2], [3, 3, 1]], [[4, 4, 2], [5, 5, 0], [6, 6, 2]]])
    flip = images.HorizontalFlip(1.0)
    found = moved(points, [flip], flip_pairs=[(1, 2)])["points"]
    assert found.tolist() == [
        [[79, 1, 2], [77, 3, 1], [78, 2, 2]],
        [[76, 4, 2], [74, 6, 2], [5, 5, 0]],
    ]
    assert np.array_equal(moved(points, [flip, flip], flip_pairs=[(1, 2)])["points"], points)
    turned = moved(points, [flip, images.VerticalFlip(1.0)], flip_pairs=[(1, 2)])["points"]  # by 180 degrees
    assert turned[0].tolist() == [[79, 59, 2], [78, 58, 2], [77, 57, 1]]
    assert np.array_equal(moved(points, [flip])["points"][..., 0] == 79, points[..., 0] == 1)


@pytest.mark.parametrize("shape", [(0, 2), (0, 3), (0, 17, 3), (4, 2), (2, 5, 3)])
def test_arrays_of_any_shape_and_tensors(shape: tuple[int, ...]) -> None:
    points = np.full(shape, 10)
    found = moved(points, [images.Resize((30, 40))])["points"]
    assert found.shape == shape
    assert found.dtype == np.float32
    assert (found[..., :2] == 5).all()
    tensor = moved(torch.from_numpy(points), [images.Resize((30, 40))])["points"]
    assert torch.equal(tensor, torch.from_numpy(found))


def test_malformed_points_are_rejected() -> None:
    with pytest.raises(BadOption, match="2 or 3"):
        moved([[1, 2, 3, 4]], [])
    with pytest.raises(BadOption, match=r"point 9, .* 2 points"):
        moved([[1, 2], [3, 4]], [images.HorizontalFlip(1.0)], flip_pairs=[(0, 9)])
