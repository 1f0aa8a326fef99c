"""What transforms draw: shares, uniform values, places and orders, as torchvision draws them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from feedline import images
from feedline.errors import BadOption
from feedline.images.compose import ImageTransform
from feedline.images.geometry import View

pytestmark = pytest.mark.usefixtures("fixed_draws")


def views(transform: ImageTransform, count: int, width: int = 200, height: int = 100) -> list[View]:
    found = [View(width, height) for _ in range(count)]
    for view in found:
        transform.draw(view)
    return found


def error_of(share: float, count: int) -> float:
    """Return five standard errors of a share."""
    return 5 * math.sqrt(share * (1 - share) / count) + 1e-12


@pytest.mark.parametrize(
    "make",
    [
        lambda p: images.HorizontalFlip(p),
        lambda p: images.VerticalFlip(p),
        lambda p: images.RandomGrayscale(p),
        lambda p: images.RandomSolarize(128, p),
        lambda p: images.RandomErasing(p),
        lambda p: images.RandomApply([images.RandomGrayscale(1), images.GaussianBlur(3)], p),
    ],
)
def test_the_share_of_changed_images_is_p(make: Callable[[float], ImageTransform]) -> None:
    for p, count in ((0.0, 20), (0.3, 2000), (1.0, 20)):
        changed = [bool(view.flip or view.steps) for view in views(make(p), count)]
        assert abs(np.mean(changed) - p) <= error_of(p, count)


def part(view: View) -> tuple[float, ...]:
    """Return area and shape of a crop or an erased rectangle, as shares of 2000 x 2000 pixels, and its place."""
    if view.steps:
        step: Any = view.steps[0]  # an Erase
        left, top, width, height = step.left, step.top, step.width, step.height
    else:
        left, top, width, height = view.box
    return width * height / 2000**2, math.log(width / height), left / (2000 - width), top / (2000 - height)


# Any: the values of a step.
def of_step(*names: str) -> Callable[[View], tuple[float, ...]]:
    def values(view: View) -> tuple[float, ...]:
        return tuple(float(getattr(step, name)) for step in view.steps for name in names if hasattr(step, name))

    return values


def angle(view: View) -> tuple[float]:
    step: Any = view.steps[0]  # a Warp
    return (math.degrees(math.atan2(step.map[1], step.map[0])),)


def affine(view: View) -> tuple[float, float, float]:
    step: Any = view.steps[0]  # a Warp
    a, b, c, d, e, f = step.map
    assert (b, d, a) == (0, 0, e)
    return a, c - 1000 * (1 - a), f - 1000 * (1 - e)


PLACE = [(0, 1), (0, 1)]
UNIFORM: list[tuple[ImageTransform, Callable[[View], tuple[float, ...]], list[tuple[float, float]]]] = [
    # The parts are so small that every try fits, and nothing is drawn again.
    (images.RandomResizedCrop(8, scale=(0.1, 0.3)), part, [(0.1, 0.3), (math.log(3 / 4), math.log(4 / 3)), *PLACE]),
    (images.RandomErasing(1, (0.02, 0.06), (0.5, 2)), part, [(0.02, 0.06), (-math.log(2), math.log(2)), *PLACE]),
    (images.GaussianBlur((5, 9), (0.5, 2.5)), of_step("sigma_x", "sigma_y"), [(0.5, 2.5)] * 2),
    (images.ColorJitter(contrast=0.3), of_step("factor"), [(0.7, 1.3)]),
    (images.ColorJitter(saturation=(0.5, 2.0)), of_step("factor"), [(0.5, 2.0)]),
    (images.ColorJitter(hue=0.1), of_step("turn"), [(-0.1, 0.1)]),
    (images.RandomRotation(30), angle, [(-30, 30)]),
    (images.RandomAffine(0, (0.2, 0.4), (2, 3)), affine, [(2, 3), (-400, 400), (-800, 800)]),
]


@pytest.mark.parametrize(("transform", "values", "ranges"), UNIFORM, ids=lambda one: type(one).__name__)
def test_values_are_uniform_in_their_ranges(
    transform: ImageTransform, values: Callable[[View], tuple[float, ...]], ranges: list[tuple[float, float]]
) -> None:
    columns = np.array([values(view) for view in views(transform, 2000, 2000, 2000)]).T
    for found, (low, high) in zip(columns, ranges, strict=True):
        slack = 5e-3 * (high - low)  # sides are whole pixels
        assert low - slack <= found.min() <= found.max() <= high + slack
        for share in (0.25, 0.5, 0.75):
            assert abs(np.mean(found < low + share * (high - low)) - share) < error_of(share, 2000)


def test_all_orders_of_colour_changes_are_equally_likely() -> None:
    found = views(images.ColorJitter(0.4, 0.4, 0.4, 0.1), 4800)
    orders = Counter(tuple(type(step).__name__ for step in view.steps) for view in found)
    assert len(orders) == 24
    assert sum((count - 200) ** 2 / 200 for count in orders.values()) < 60  # chi-square, 23 degrees of freedom
    assert images.ColorJitter(brightness=3).brightness == (0, 4)
    assert not views(images.ColorJitter(), 1)[0].steps


@pytest.mark.parametrize(("p", "share"), [(None, 0.5), ([1, 3], 0.25), ([0, 2], 0)])
def test_one_transform_is_chosen(p: list[float] | None, share: float) -> None:
    found = views(images.RandomChoice([images.RandomGrayscale(1), images.GaussianBlur(3)], p), 3000)
    kinds = Counter(type(view.steps[0]).__name__ for view in found)
    assert kinds["Saturation"] + kinds["Blur"] == 3000
    assert abs(kinds["Saturation"] / 3000 - share) <= error_of(share, 3000)


def place_of(view: View) -> tuple[float, float]:
    """Return where in the image the result begins."""
    moves = [matrix for matrix, _, _ in view.moves()]
    return -sum(move[2] for move in moves), -sum(move[5] for move in moves)


@pytest.mark.parametrize("padding", [None, 2])
def test_every_place_of_a_random_crop_is_equally_likely(padding: int | None) -> None:
    places = Counter(map(place_of, views(images.RandomCrop((6, 8), padding), 6000, 10, 8)))
    least = 0 if padding is None else -2
    assert set(places) == {(x, y) for x in range(least, 3 - least) for y in range(least, 3 - least)}
    mean = 6000 / len(places)
    assert sum((count - mean) ** 2 / mean for count in places.values()) < 3 * len(places) + 10


def test_every_place_of_a_small_image_is_drawn_including_the_last() -> None:
    found = views(images.RandomResizedCrop(2, scale=(0.24, 0.26), ratio=(1, 1)), 500, 4, 4)
    assert {view.box[0] for view in found} == {0, 1, 2}


def test_parts_that_never_fit() -> None:
    assert not any(view.steps for view in views(images.RandomErasing(1, scale=(1, 1)), 20))
    crop = images.RandomResizedCrop(8, scale=(5, 6))
    for size, box in (((1000, 10), (493, 0, 13, 10)), ((10, 1000), (0, 493, 10, 13)), ((40, 40), (0, 0, 40, 40))):
        assert views(crop, 1, *size)[0].box == box


@pytest.mark.parametrize(
    ("size", "image", "result"),
    [
        (256, (500, 375), (341, 256)),
        (256, (375, 500), (256, 341)),
        (10, (7, 7), (10, 10)),
        ((30, 20), (500, 375), (20, 30)),
        (np.int64(8), (32, 32), (8, 8)),
    ],
)
def test_resize_sets_the_shorter_side_or_both(size: Any, image: tuple[int, int], result: tuple[int, int]) -> None:
    (view,) = views(images.Resize(size), 1, *image)
    assert (view.width, view.height, view.box) == (*result, (0, 0, *image))


def test_crops_of_a_given_size() -> None:
    assert views(images.CenterCrop(224), 1, 341, 256)[0].box == (58, 16, 224, 224)  # as torchvision rounds 58.5
    view = View(400, 300)
    images.Resize(100).draw(view)
    images.RandomCrop(80).draw(view)  # inside the image: a part of the first cut
    assert (view.steps, view.box[3]) == ([], 240)
    for crop, advice in (
        (images.CenterCrop(224), r"Put Resize\(224\)"),
        (images.RandomCrop((224, 8)), "pad_if_needed=True"),
        (images.FiveCrop(224), r"CornerCrop\(\(224, 224\)\)"),
    ):
        with pytest.raises(BadOption, match=advice):
            crop(np.zeros((223, 341, 3), np.uint8))
