"""Images and targets."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch

from feedline.collate import detection
from feedline.errors import CollateError


def sample(height: int, boxes: int) -> tuple[Any, dict[str, Any]]:
    return np.full((3, height, 4), height, np.uint8), {
        "boxes": np.ones((boxes, 4), np.float32),
        "labels": np.arange(boxes),
        "id": boxes,
        "file": f"{boxes}.jpg",
        "masks": [np.zeros((height, 4), bool)],
    }


EQUAL = [sample(5, 2), sample(5, 0), sample(5, 7)]
UNEQUAL = [sample(5, 2), sample(6, 0)]


@pytest.mark.parametrize("stack", ["auto", True])
def test_images_of_one_shape_are_stacked(stack: Literal["auto", True]) -> None:
    images, targets = detection(stack)(EQUAL)
    assert images.shape == (3, 3, 5, 4)
    assert [target["boxes"].shape for target in targets] == [(2, 4), (0, 4), (7, 4)]
    assert [target["id"] for target in targets] == [2, 0, 7]
    assert [target["file"] for target in targets] == ["2.jpg", "0.jpg", "7.jpg"]


@pytest.mark.parametrize(("stack", "samples"), [("auto", UNEQUAL), (False, UNEQUAL), (False, EQUAL)])
def test_images_are_listed(stack: Literal["auto", False], samples: list[Any]) -> None:
    images, _ = detection(stack)(samples)
    assert isinstance(images, list)
    assert [image.shape for image in images] == [image.shape for image, _ in samples]


@pytest.mark.parametrize("samples", [EQUAL, UNEQUAL])
def test_bound_to_torch_everything_is_a_tensor(samples: list[Any]) -> None:
    images, targets = detection().bound_to("torch")(samples)
    assert all(isinstance(image, torch.Tensor) and image.dtype == torch.uint8 for image in images)
    assert all(isinstance(target["boxes"], torch.Tensor) for target in targets)
    assert all(isinstance(target["masks"][0], torch.Tensor) for target in targets)
    assert [target["id"] for target in targets] == [target["id"] for _, target in samples]


def test_samples_may_be_dicts_or_longer_tuples() -> None:
    batch = detection(image="pixels")([{"pixels": image, **target} for image, target in EQUAL])
    assert batch["pixels"].shape == (3, 3, 5, 4)
    assert batch["id"] == [2, 0, 7]
    images, targets, numbers = detection()([(*pair, number) for number, pair in enumerate(EQUAL)])
    assert (len(images), len(targets), numbers) == (3, 3, [0, 1, 2])


@pytest.mark.parametrize("samples", [[np.zeros((3, 4, 4))], [{"image": np.zeros((3, 4, 4))}], [7]])
def test_rejects_samples_without_the_image_field(samples: list[Any]) -> None:
    with pytest.raises(CollateError, match="no field 0 with the image"):
        detection()(samples)
