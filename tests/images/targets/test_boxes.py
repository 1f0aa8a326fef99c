"""Boxes surround the same content after any transform of the image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline import images
from feedline.errors import BadOption
from tests.images.targets.moves import Padded, moves, upright

HEIGHT, WIDTH = 60, 80
IMAGE = np.zeros((HEIGHT, WIDTH, 3), np.uint8)


def painted(left: int, top: int, right: int, bottom: int) -> NDArray[np.uint8]:
    pixels = IMAGE.copy()
    pixels[top:bottom, left:right] = 255
    return pixels


def bright(pixels: NDArray[np.uint8]) -> tuple[float, float, float, float] | None:
    """Return left, top, right and bottom of the bright pixels."""
    rows, columns = np.nonzero(pixels[..., 0] > 140)
    if not len(rows):
        return None
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


# Any, throughout: transforms, and boxes in any form.
def moved(boxes: Any, transforms: Any, image: NDArray[np.uint8] = IMAGE, **options: Any) -> Any:
    pipeline = images.Compose(transforms, targets={"boxes": images.Boxes(**options)})
    return pipeline({"image": image, "boxes": boxes})


places = st.tuples(st.integers(5, 40), st.integers(5, 30), st.integers(12, 34), st.integers(12, 25))


@given(places, moves)
def test_a_box_surrounds_the_same_pixels_after_any_moves(place: tuple[int, int, int, int], transforms: Any) -> None:
    left, top, width, height = place
    box = [left, top, left + width, top + height]
    sample = moved([box], transforms, painted(*box), min_size=0)
    found, ((x0, y0, x1, y1),) = bright(sample["image"]), sample["boxes"]
    assert sample["image"].shape[1] >= x1 >= x0 >= 0
    assert sample["image"].shape[0] >= y1 >= y0 >= 0
    if found is not None:
        slack = 3  # pixels are rounded in every stage, and may be enlarged later
        assert found[0] >= x0 - slack
        assert found[1] >= y0 - slack
        assert found[2] <= x1 + slack
        assert found[3] <= y1 + slack


@given(places, upright)
def test_boxes_are_tight_if_nothing_is_rotated(place: tuple[int, int, int, int], transforms: Any) -> None:
    left, top, width, height = place
    box = [left, top, left + width, top + height]
    sample = moved([box], transforms, painted(*box))
    found = bright(sample["image"])
    if len(sample["boxes"]) and found is not None:
        assert np.abs(sample["boxes"][0] - found).max() <= 3
    elif found is not None:  # less than a pixel of the box is left
        assert min(found[2] - found[0], found[3] - found[1]) <= 3


@given(st.lists(places, max_size=4), moves)
def test_all_formats_describe_the_same_boxes(boxes: Any, transforms: Any) -> None:
    xywh = np.array(boxes, float).reshape(-1, 4)
    xyxy = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], 1)
    centers = np.concatenate([xywh[:, :2] + xywh[:, 2:] / 2, xywh[:, 2:]], 1)
    expected = moved(xyxy, transforms)
    found = expected["boxes"]
    sides = found[:, 2:] - found[:, :2]
    same = moved(xywh, transforms, format="xywh")["boxes"]
    assert np.allclose(same, np.concatenate([found[:, :2], sides], 1), atol=1e-3)
    same = moved(centers, transforms, format="cxcywh")["boxes"]
    assert np.allclose(same, np.concatenate([found[:, :2] + sides / 2, sides], 1), atol=1e-3)
    height, width = expected["image"].shape[:2]
    same = moved(xyxy / [WIDTH, HEIGHT, WIDTH, HEIGHT], transforms, normalized=True)["boxes"]
    assert np.allclose(same * [width, height, width, height], found, atol=1e-2)


CROP = [images.CenterCrop((HEIGHT, 40))]  # columns 20 to 60


def test_boxes_outside_of_the_image_are_removed_with_their_fields() -> None:
    boxes = [[0, 0, 19, 10], [10, 0, 30, 10], [30, 5, 50, 25], [70, 0, 75, 5]]
    target: dict[str, Any] = {
        "boxes": boxes,
        "labels": torch.arange(4),
        "area": np.arange(4.0),
        "names": list("abcd"),
        "masks": np.zeros((4, HEIGHT, WIDTH), bool),
        "keypoints": np.ones((4, 17, 3)),
        "size": [HEIGHT, WIDTH],
    }
    fields = ("labels", "area", "names", "masks", "keypoints", "none of these")
    targets = {"boxes": images.Boxes(fields=fields), "masks": images.Mask(), "keypoints": images.Keypoints()}
    _, found = images.Compose(CROP, targets=targets)((IMAGE, target))
    assert found["boxes"].tolist() == [[0, 0, 10, 10], [10, 5, 30, 25]]
    assert found["boxes"].dtype == np.float32
    assert found["labels"].tolist() == [1, 2]
    assert found["area"].tolist() == [1, 2]
    assert found["names"] == ["b", "c"]
    assert found["masks"].shape == (2, HEIGHT, 40)
    assert found["keypoints"].shape == (2, 17, 3)
    assert found["size"] == [HEIGHT, WIDTH]
    assert target["boxes"] is boxes
    assert len(target["masks"]) == 4


@pytest.mark.parametrize(
    ("options", "kept"),
    [({}, 2), ({"min_size": 0}, 3), ({"min_size": 11}, 1), ({"min_visible": 0.4}, 2), ({"min_visible": 0.6}, 1)],
)
def test_how_much_of_a_box_must_remain(options: dict[str, Any], kept: int) -> None:
    boxes = [[0, 0, 19, 10], [10, 0, 30, 10], [30, 5, 50, 25]]
    assert len(moved(boxes, CROP, **options)["boxes"]) == kept


def test_what_was_cropped_away_does_not_come_back() -> None:
    found = moved([[0, 0, 40, 10]], [*CROP, Padded(15, 0, 0, 0, "constant")])["boxes"]
    assert found.tolist() == [[15, 0, 35, 10]]
    turned = moved([[0, 20, 10, 50]], [images.CenterCrop(40), images.Pad(20), images.RandomRotation((45, 45))])
    assert len(turned["boxes"]) == 0


@pytest.mark.parametrize("none", [[], np.zeros((0, 4)), torch.zeros((0, 4))])
def test_images_without_boxes(none: Any) -> None:
    crop = images.Compose(CROP, targets={"boxes": images.Boxes()})
    assert crop({"image": IMAGE, "boxes": [[0, 0, 5, 5]], "labels": None})["labels"] is None
    found = moved(none, [images.HorizontalFlip(1.0), images.Resize(10)])["boxes"]
    assert tuple(found.shape) == (0, 4)
    assert isinstance(found, torch.Tensor) == isinstance(none, torch.Tensor)


@pytest.mark.parametrize("boxes", [[1, 2, 3, 4], [[1, 2, 3]], [["a", "b", "c", "d"]], np.zeros((2, 5)), [[0], [1, 2]]])
def test_malformed_boxes_are_rejected(boxes: Any) -> None:
    with pytest.raises(BadOption, match=r"Boxes .* 4 "):
        moved(boxes, [])


@pytest.mark.parametrize("labels", [3, np.int64(3), np.array(3), torch.tensor(3), "cat", [1], [], [1, 2, 3]])
def test_labels_are_counted_even_if_all_boxes_remain(labels: object) -> None:
    pipeline = images.Compose([images.HorizontalFlip(1.0)], targets={"boxes": images.Boxes()})
    with pytest.raises(BadOption, match=r"'labels' .* \d .* 2 boxes"):
        pipeline({"image": IMAGE, "boxes": [[0, 0, 9, 9], [1, 1, 8, 8]], "labels": labels})


@pytest.mark.parametrize("after", [images.Pad(60), images.RandomAffine(0, scale=(0.4, 0.4))])
def test_boxes_that_a_rotation_moved_out_of_the_image_do_not_come_back(after: images.Pad | images.RandomAffine) -> None:
    corner, middle = [0, 0, 4, 4], [36, 26, 44, 34]
    rotated = moved([corner, middle], [images.RandomRotation((45, 45)), after], painted(0, 0, 4, 4))
    assert bright(rotated["image"]) is None
    assert len(rotated["boxes"]) == 1
    left, top, right, bottom = rotated["boxes"][0]
    height, width = rotated["image"].shape[:2]
    assert left + right == pytest.approx(width, abs=1e-3)
    assert top + bottom == pytest.approx(height, abs=1e-3)
