"""Batches of images are the same wherever their images are finished, with every engine, and after resuming."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import feedline
from feedline import images
from feedline.abc.memory import Placement
from feedline.images.finishing import DeferredImages
from feedline.loader.base import config_of
from tests.images.pictures import Scenes, finished, placed
from tests.images.targets.moves import Warped

AUGMENTED = [
    images.RandomResizedCrop(48, scale=(0.3, 1)),
    images.HorizontalFlip(),
    images.ColorJitter(0.4, 0.4, 0.4, 0.1),
    images.RandAugment(),
    images.Normalize(),
    images.RandomErasing(value="random"),
]
LARGE = images.Compose([images.RandomResizedCrop(40, scale=(0.4, 1)), images.HorizontalFlip(), images.Normalize()])
SMALL = images.Compose([images.RandomResizedCrop(16, scale=(0.05, 0.4)), images.ColorJitter(0.4), images.Normalize()])
MOVED = [images.RandomResizedCrop(48), images.HorizontalFlip(), Warped(20, 1.1, 0.1)]
TARGETS = {"mask": images.Mask(fill=255), "points": images.Keypoints(), "boxes": images.Boxes(min_size=0)}
GREY = [images.Decode("I;16"), images.RandomResizedCrop(32), images.HorizontalFlip(), images.Normalize((0.5,), (0.2,))]

PIPELINES: dict[str, images.Compose | images.Views] = {
    "augmented": images.Compose(AUGMENTED),
    "bytes": images.Compose([images.RandomResizedCrop((64, 72)), images.HorizontalFlip()]),
    "padded": images.Compose([images.RandomCrop(90, 10, True), images.RandomRotation(9), images.CenterCrop(64)]),
    "views": images.Views([LARGE, LARGE, SMALL]),
    "targets": images.Compose([*MOVED, images.Normalize()], targets=TARGETS),
    "grey": images.Compose(GREY),
}


# Any, throughout: loaders, and fields of any form.
def arrays(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [array for one in value for array in arrays(one)]
    return [finished(value) if isinstance(value, DeferredImages) else np.asarray(value)]


def batches(loader: Any) -> list[list[Any]]:
    return [[array for field in batch.values() for array in arrays(field)] for batch in loader]


def loader_of(name: str, kind: Any = feedline.DataLoader, **options: Any) -> Any:
    return kind(Scenes(PIPELINES[name].on("image")), 4, shuffle=True, seed=7, **options)


def check_equal(found: list[list[Any]], expected: list[list[Any]], most: float = 0) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for array, same in zip(one, other, strict=True):
            assert array.shape == same.shape
            assert np.abs(array.astype(float) - same).max() <= most


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (feedline.DataLoader, Placement.COLLATE),
        (feedline.Loader, Placement.DEVICE),
        (feedline.DataLoader, Placement.DECODE),
    ],
)
@pytest.mark.parametrize("name", PIPELINES)
def test_batches_do_not_depend_on_where_images_are_finished(name: str, kind: Any, where: Placement) -> None:
    expected = batches(loader_of(name, placed(kind, Placement.DATASET)))
    loader = loader_of(name, placed(kind, where))
    made = list(loader)
    check_equal(batches(made), expected, 1e-5 if where is Placement.DECODE else 0)
    on_device = [batch["image"] for batch in made if isinstance(batch["image"], DeferredImages)]
    assert len(on_device) == (3 if where is not Placement.COLLATE and name not in ("views", "grey") else 0)
    is_encoded = [batch.is_encoded for batch in on_device]
    assert any(is_encoded) == (bool(on_device) and where is Placement.DECODE and name != "padded")


@pytest.mark.parametrize(("name", "engine"), [*zip(PIPELINES, ["thread", "process"] * 3, strict=True)])
def test_batches_are_the_same_on_every_engine_and_after_resuming(name: str, engine: str) -> None:
    first = loader_of(name)
    assert config_of(first).placement is Placement.COLLATE
    begun = iter(first)
    expected = batches([next(begun)])
    state = first.state_dict()
    expected += batches(begun)
    assert not all(np.array_equal(one, other) for one, other in zip(expected[0], expected[1], strict=True))
    check_equal(batches(loader_of(name, feedline.Loader, engine=engine, workers=2)), expected)
    second = loader_of(name)
    second.load_state_dict(state)
    check_equal(batches(second), expected[1:])


def test_an_image_finished_on_the_device_still_matches_its_mask() -> None:
    dataset = Scenes(images.Compose(MOVED, targets=TARGETS).on("image"))
    for batch in placed(feedline.DataLoader, Placement.DECODE)(dataset, 4, seed=7):
        bright = finished(batch["image"])[..., 0].astype(int) - 120
        mask = batch["mask"].numpy()
        differ = (bright > 0) != (mask > 0)
        assert (differ & (np.abs(bright) > 25) & (mask < 255)).mean() < 0.02  # except for interpolation
