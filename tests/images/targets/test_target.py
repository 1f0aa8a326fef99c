"""Targets are found in samples of all forms, and do not depend on where the image is finished."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from feedline import images
from feedline.errors import BadOption
from tests.images.pictures import encoded, photo
from tests.images.targets.moves import Resized

pytestmark = pytest.mark.usefixtures("fixed_draws")

IMAGE = np.zeros((60, 80, 3), np.uint8)
BOXES = np.array([[10, 10, 30, 30.0]])
FLIPPED = [[50, 10, 70, 30]]
FLIP = images.Compose([images.HorizontalFlip(1.0)], targets={"boxes": images.Boxes()})


class Pair(NamedTuple):
    image: Any
    target: Any


# Any, throughout: samples of all forms.
@pytest.mark.parametrize(
    ("sample", "path"),
    [
        ({"image": IMAGE, "boxes": BOXES, "id": 3}, ("boxes",)),
        ({"image": IMAGE, "target": {"boxes": BOXES, "id": 3}}, ("target", "boxes")),
        ({"image": IMAGE, "target": {"boxes": BOXES}, "facts": {"id": 3}}, ("target", "boxes")),
        ((IMAGE, {"boxes": BOXES, "id": 3}), (1, "boxes")),
        ([IMAGE, {"boxes": BOXES, "id": 3}], (1, "boxes")),
        (Pair(IMAGE, {"boxes": BOXES}), (1, "boxes")),
        (({"boxes": BOXES}, IMAGE), (0, "boxes")),
    ],
)
def test_targets_are_found(sample: Any, path: tuple[Any, ...]) -> None:
    found = FLIP(sample)
    assert type(found) is type(sample)
    for name in path:
        found = found[name]
    assert found.tolist() == FLIPPED
    assert BOXES.tolist() == [[10, 10, 30, 30]]


@pytest.mark.parametrize("position", [1, -1])
@pytest.mark.parametrize("kind", [np.int64, np.uint8])  # an array of uint8 looks like an image, too
def test_a_target_may_be_a_position(position: int, kind: Any) -> None:
    mask = (np.arange(60 * 80).reshape(60, 80) % 251).astype(kind)
    _, found = images.Compose([images.HorizontalFlip(1.0)], targets={position: images.Mask()})((IMAGE, mask))
    assert np.array_equal(found, mask[:, ::-1])


def test_masks_are_not_mistaken_for_the_image() -> None:
    mask = encoded(np.full((60, 80), 7, np.uint8), "PNG")
    sample = {"image": encoded(photo(80, 60)), "mask": mask, "depth": np.ones((60, 80), np.float32)}
    targets = {"mask": images.Mask(), "depth": images.Mask(fill=np.nan)}
    found = images.Compose([images.Resize((30, 40)), images.Normalize()], targets=targets)(sample)
    assert found["image"].shape == (3, 30, 40)
    assert (found["mask"] == 7).all()
    assert found["depth"].shape == (30, 40)


def test_several_samples_at_once_as_hugging_face_passes_them() -> None:
    files = [{"bytes": encoded(photo(80, 60, seed)), "path": None} for seed in range(3)]
    objects = [{"bbox": [[10, 10, 20, 20]] * count, "category": list(range(count))} for count in range(3)]
    targets = {"bbox": images.Boxes("xywh", fields="category")}
    pipeline = images.Compose([images.HorizontalFlip(1.0), images.CenterCrop((60, 60))], targets=targets)
    found = pipeline({"image": files, "objects": objects, "id": [7, 8, 9]})
    assert [len(one["bbox"]) for one in found["objects"]] == [0, 1, 2]
    assert found["objects"][1]["bbox"].tolist() == [[40, 10, 20, 20]]
    assert found["id"] == [7, 8, 9]
    assert [image.shape for image in found["image"]] == [(60, 60, 3)] * 3


@pytest.mark.parametrize(
    ("sample", "named"),
    [
        ((IMAGE, {"labels": 3}), "'boxes'"),
        ({"image": IMAGE, "a": {"boxes": BOXES}, "b": {"boxes": BOXES}}, r"\['a', 'b'\]"),
        (IMAGE, "alone"),
    ],
)
def test_missing_targets_are_rejected(sample: Any, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        FLIP(sample)


def test_bad_targets_are_rejected() -> None:
    for given in (["boxes"], {"boxes": "xyxy"}, images.Boxes()):
        with pytest.raises(BadOption, match="targets="):
            images.Compose([], targets=given)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="targets="):
        images.Compose([FLIP])


def test_functions_may_change_pixels_but_not_move_them() -> None:
    def invert(pixels: Any) -> Any:
        return 255 - pixels

    def shrink(pixels: Any) -> Any:
        return pixels[::2, ::2]

    targets = {"boxes": images.Boxes()}
    pipeline = images.Compose([images.HorizontalFlip(1.0), invert, images.Resize((30, 40))], targets=targets)
    assert pipeline((IMAGE, {"boxes": BOXES}))[1]["boxes"].tolist() == [[25, 5, 35, 15]]
    with pytest.raises(BadOption, match=r"shrink.* \(30, 40, 3\) .* 60 x 80"):
        images.Compose([shrink], targets=targets)((IMAGE, {"boxes": BOXES}))


def test_targets_move_through_several_stages() -> None:
    """A second resize starts a new stage, with the coordinates of the first stage's result."""
    targets = {"boxes": images.Boxes(), "points": images.Keypoints(), "mask": images.Mask()}
    pipeline = images.Compose([Resized(0.5, 0.5), images.HorizontalFlip(1.0), Resized(4, 4)], targets=targets)
    mask = np.arange(60 * 80).reshape(60, 80)
    sample = {"image": IMAGE, "boxes": BOXES, "points": [[10, 10]], "mask": mask}
    found = pipeline(sample)
    assert found["boxes"].tolist() == [[100, 20, 140, 60]]
    assert found["points"].tolist() == [[140, 20]]
    assert np.array_equal(found["mask"], np.repeat(np.repeat(mask[1::2, 1::2][:, ::-1], 4, 0), 4, 1))


def test_rejects_two_boxes_targets_that_filter_the_same_field() -> None:
    targets: dict[Any, Any] = {"boxes": images.Boxes(), "faces": images.Boxes()}
    pipeline = images.Compose([images.CenterCrop(8)], targets=targets)
    boxes = np.array([[0, 0, 2, 2], [14, 14, 18, 18]], float)
    sample = {"image": np.zeros((32, 32, 3), np.uint8), "boxes": boxes, "faces": boxes, "labels": [1, 2]}
    with pytest.raises(BadOption, match=r"'labels'.*fields="):
        pipeline(sample)
    del sample["labels"]
    assert len(pipeline(sample)["faces"]) == 1


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
    mask = np.zeros((60, 80), np.uint8)
    mask[22:40, 30:56] = 1
    sample = {
        "image": np.repeat(mask[..., None] * np.uint8(255), 3, 2),
        "mask": mask,
        "boxes": [[30, 22, 56, 40]],
        "point": [[43, 31, 2]],
    }
    for _ in range(10):
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
