"""Targets are found in samples of all forms, and do not depend on where the image is finished."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import feedline
from feedline import collate, images
from feedline.abc.memory import Placement
from feedline.datasets.framework.source import Source
from feedline.errors import BadOption
from feedline.images.deferred import DeferredImages
from tests.images.pictures import encoded, finished, photo, placed
from tests.images.targets.moves import Resized, Warped

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


def test_a_target_may_be_a_position() -> None:
    mask = np.arange(60 * 80).reshape(60, 80) % 251
    for kind in (np.int64, np.uint8):  # an array of uint8 looks like an image, too
        pipeline = images.Compose([images.HorizontalFlip(1.0)], targets={1: images.Mask()})
        image, found = pipeline((IMAGE, mask.astype(kind)))
        assert np.array_equal(found, mask[:, ::-1])
        assert image.shape == IMAGE.shape


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
    ("sample", "message"),
    [
        ((IMAGE, {"labels": 3}), "names 'boxes', but the sample does not have it"),
        ({"image": IMAGE, "a": {"boxes": BOXES}, "b": {"boxes": BOXES}}, r"the fields \['a', 'b'\] .* all have it"),
        (IMAGE, "the sample is an image alone"),
    ],
)
def test_missing_targets_are_rejected(sample: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        FLIP(sample)


def test_bad_targets_are_rejected() -> None:
    for given in (["boxes"], {"boxes": "xyxy"}, images.Boxes()):
        with pytest.raises(BadOption, match="is not a dict of targets"):
            images.Compose([], targets=given)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match=r"Pass targets= to the outer pipeline"):
        images.Compose([FLIP])


def test_functions_may_change_pixels_but_not_move_them() -> None:
    def invert(pixels: Any) -> Any:
        return 255 - pixels

    def shrink(pixels: Any) -> Any:
        return pixels[::2, ::2]

    targets = {"boxes": images.Boxes()}
    pipeline = images.Compose([images.HorizontalFlip(1.0), invert, images.Resize((30, 40))], targets=targets)
    assert pipeline((IMAGE, {"boxes": BOXES}))[1]["boxes"].tolist() == [[25, 5, 35, 15]]
    with pytest.raises(BadOption, match=r"shrink.* returned an image of shape \(30, 40, 3\) for one of 60 x 80"):
        images.Compose([shrink], targets=targets)((IMAGE, {"boxes": BOXES}))


def test_the_repr_shows_the_targets() -> None:
    assert repr(FLIP).endswith("targets={'boxes': " + repr(images.Boxes()) + "})")


SIZES = [(120, 90), (100, 80), (90, 120), (64, 64)]


class Scenes(Source):
    """Files with a mask and a point, JPEG and PNG."""

    def __len__(self) -> int:
        return 16

    def _read(self, indices: Any) -> list[Any]:
        return [self._scene(index) for index in indices.tolist()]

    def _scene(self, index: int) -> dict[str, Any]:
        width, height = SIZES[index % 4]
        pixels = photo(width, height, index)
        mask = (pixels[..., 0] > 120).astype(np.uint8)
        return {
            "image": encoded(pixels, "PNG" if index % 3 else "JPEG"),
            "mask": encoded(mask, "PNG"),
            "points": [[20, 30, 2], [60, 50, 1]],
            "boxes": [[index, 5, index + 20, 40]],
        }

    def close(self) -> None:
        pass

    def _form(self) -> str:
        return "scenes"


TRAIN = images.Compose(
    [
        images.RandomResizedCrop(48, scale=(0.3, 1)),
        images.HorizontalFlip(),
        Warped(20, 1.1, 0.1),
        images.ColorJitter(0.4),
        images.Normalize(),
    ],
    targets={"mask": images.Mask(fill=255), "points": images.Keypoints(), "boxes": images.Boxes(min_size=0)},
)


def batches(kind: Any, **options: Any) -> list[Any]:
    loader = kind(Scenes(TRAIN), 4, shuffle=True, seed=7, **options)
    return [{name: np.asarray(value) for name, value in batch.items() if name != "image"} for batch in loader]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("where", list(Placement))
def test_targets_do_not_depend_on_where_the_image_is_finished(where: Placement) -> None:
    expected = batches(placed(feedline.DataLoader, Placement.DATASET), num_workers=0)
    assert expected[0]["mask"].shape == (4, 48, 48)
    assert len({tuple(batch["points"].ravel().tolist()) for batch in expected}) == 4
    assert_equal(batches(placed(feedline.DataLoader, where), num_workers=0), expected)


@pytest.mark.parametrize(("engine", "workers"), [("inline", 0), ("thread", 2), ("process", 2)])
def test_targets_are_the_same_on_every_engine(engine: str, workers: int) -> None:
    expected = batches(feedline.DataLoader, num_workers=0)
    assert_equal(batches(feedline.Loader, engine=engine, workers=workers), expected)


def test_an_image_finished_on_the_device_still_matches_its_mask() -> None:
    targets = {"mask": images.Mask(), "points": images.Keypoints(), "boxes": images.Boxes(min_size=0)}
    pipeline = images.Compose(
        [images.RandomResizedCrop(48), images.HorizontalFlip(), Warped(20, 1, 0)], targets=targets
    )
    loader = placed(feedline.DataLoader, Placement.DECODE)(Scenes(pipeline), 4, seed=7)
    for batch in loader:
        assert isinstance(batch["image"], DeferredImages)
        bright = finished(batch["image"])[..., 0].astype(int) - 120
        differ = (bright > 0) != (batch["mask"].numpy() > 0)
        assert (differ & (np.abs(bright) > 25)).mean() < 0.02  # except for interpolation


def test_batches_for_detection() -> None:
    loader = feedline.DataLoader(Scenes(TRAIN), 4, seed=7, collate_fn=collate.detection(image="image"))
    batch = next(iter(loader))
    assert batch["image"].shape == (4, 3, 48, 48)
    assert [type(boxes) for boxes in batch["boxes"]] == [torch.Tensor] * 4


def test_resuming_gives_the_same_targets() -> None:
    def loader() -> Any:
        return feedline.DataLoader(Scenes(TRAIN), 2, shuffle=True, seed=3)

    whole = list(loader())
    for step in (1, 5):
        first = loader()
        steps = iter(first)
        for _ in range(step):
            next(steps)
        second = loader()
        second.load_state_dict(first.state_dict())
        rest = list(second)
        assert len(rest) == len(whole) - step
        for one, other in zip(rest, whole[step:], strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)


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


def test_a_function_may_move_the_channel_to_the_front() -> None:
    first = images.Compose([lambda image: image.transpose(2, 0, 1)], targets={"boxes": images.Boxes()})
    found = first({"image": IMAGE, "boxes": BOXES})
    assert found["image"].shape == (3, 60, 80)
    assert found["boxes"].tolist() == BOXES.tolist()


def test_boxes_without_labels_and_malformed_boxes() -> None:
    crop = images.Compose([images.CenterCrop(40)], targets={"boxes": images.Boxes()})
    found = crop({"image": IMAGE, "boxes": [[0, 0, 5, 5]], "labels": None})
    assert found["boxes"].shape == (0, 4)
    assert found["labels"] is None
    with pytest.raises(BadOption, match=r"Boxes are not rows of 4 numbers: \[\[0, 0, 5, 5\], \[1, 2\]\]"):
        crop({"image": IMAGE, "boxes": [[0, 0, 5, 5], [1, 2]]})


def test_a_target_may_be_counted_from_the_end() -> None:
    mask = np.arange(80, dtype=np.uint8) + np.zeros((60, 1), np.uint8)
    _, flipped = images.Compose([images.HorizontalFlip(1.0)], targets={-1: images.Mask()})((IMAGE, mask))
    assert np.array_equal(flipped, mask[:, ::-1])


def test_rejects_two_boxes_targets_that_filter_the_same_field() -> None:
    targets: dict[Any, Any] = {"boxes": images.Boxes(), "faces": images.Boxes()}
    pipeline = images.Compose([images.CenterCrop(8)], targets=targets)
    boxes = np.array([[0, 0, 2, 2], [14, 14, 18, 18]], float)
    sample = {"image": np.zeros((32, 32, 3), np.uint8), "boxes": boxes, "faces": boxes, "labels": [1, 2]}
    with pytest.raises(BadOption, match=r"both filter the field 'labels'.*fields= of its own"):
        pipeline(sample)
    del sample["labels"]
    assert len(pipeline(sample)["faces"]) == 1


def test_sizes_may_be_numpy_integers() -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    assert images.Resize(np.int64(8))(image).shape == (8, 8, 3)  # type: ignore[arg-type]  # as arrays contain them
    assert images.CenterCrop((np.int32(4), 6))(image).shape == (4, 6, 3)  # type: ignore[arg-type]
