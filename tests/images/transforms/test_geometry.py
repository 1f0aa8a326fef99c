from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize, VerticalFlip
from feedline.images.geometry import View
from tests.images.pictures import photo

pytestmark = pytest.mark.usefixtures("fixed_draws")


@pytest.mark.parametrize(
    ("size", "image", "result"),
    [
        (256, (500, 375), (341, 256)),
        (256, (375, 500), (256, 341)),
        (10, (7, 7), (10, 10)),
        ((30, 20), (500, 375), (20, 30)),
    ],
)
def test_resize_sets_the_shorter_side_or_both(
    size: int | tuple[int, int], image: tuple[int, int], result: tuple[int, int]
) -> None:
    view = View(*image)
    Resize(size).draw(view)
    assert (view.width, view.height) == result
    assert view.box == (0, 0, *image)


@pytest.mark.parametrize("size", [0, True, (1, 2, 3), "a"])
def test_bad_sizes_are_rejected(size: int) -> None:
    with pytest.raises(BadOption, match="size="):
        Resize(size)


def test_the_center_crop_is_that_of_torchvision() -> None:
    view = View(341, 256)
    CenterCrop(224).draw(view)
    assert view.box == (58, 16, 224, 224)  # round(58.5) is 58


def test_the_error_for_a_smaller_image_gives_advice() -> None:
    with pytest.raises(BadOption, match=r"Put Resize\(224\)"):
        CenterCrop(224).draw(View(341, 223))


def boxes(crop: RandomResizedCrop, width: int, height: int, count: int = 4000) -> NDArray[np.float64]:
    found = []
    for _ in range(count):
        view = View(width, height)
        crop.draw(view)
        assert (view.height, view.width) == crop.size
        found.append(view.box)
    return np.array(found)


def test_area_and_shape_are_distributed_as_defined() -> None:
    # The part is so small that every try fits, and nothing is drawn again.
    left, top, width, height = boxes(RandomResizedCrop(8, scale=(0.1, 0.3)), 2000, 2000).T
    share = width * height / 2000**2
    shape = np.log(width / height)
    for values, low, high in ((share, 0.1, 0.3), (shape, math.log(3 / 4), math.log(4 / 3))):
        assert low - 5e-3 <= values.min() <= values.max() <= high + 5e-3  # sides are whole pixels
        for part in (0.25, 0.5, 0.75):  # quantiles of a uniform distribution, within five standard errors
            error = 5 * math.sqrt(part * (1 - part) / len(values))
            assert abs(np.mean(values < low + part * (high - low)) - part) < error
    for place, room in ((left, 2000 - width), (top, 2000 - height)):
        assert abs(np.mean(place / room) - 0.5) < 5 * math.sqrt(1 / 12 / len(left))
        assert (place >= 0).all()
        assert (place <= room).all()
        assert (place == np.rint(place)).all()


def test_every_place_of_a_small_image_is_drawn_including_the_last() -> None:
    left = boxes(RandomResizedCrop(2, scale=(0.24, 0.26), ratio=(1, 1)), 4, 4, 500)[:, 0]
    assert set(left) == {0, 1, 2}


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [(1000, 10, (493, 0, 13, 10)), (10, 1000, (0, 493, 10, 13)), (40, 40, (0, 0, 40, 40))],
)
def test_a_crop_that_never_fits_becomes_a_center_crop(width: int, height: int, box: tuple[int, ...]) -> None:
    crop = RandomResizedCrop(8, scale=(5, 6))
    assert (boxes(crop, width, height, 3) == box).all()


@pytest.mark.parametrize("options", [{"scale": (0, 1)}, {"scale": (0.5, 0.1)}, {"ratio": (-1, 1)}, {"scale": 0.5}])
def test_bad_ranges_are_rejected(options: dict[str, tuple[float, float]]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        RandomResizedCrop(8, **options)


@pytest.mark.slow
def test_torchvision_draws_from_the_same_distribution() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    image = torch.empty(3, 375, 500)
    theirs = np.array([transforms.RandomResizedCrop.get_params(image, (0.08, 1), (3 / 4, 4 / 3)) for _ in range(4000)])
    ours = boxes(RandomResizedCrop(8), 500, 375)[:, [1, 0, 3, 2]]
    for mine, other in zip(ours.T, theirs.T, strict=True):
        assert abs(mine.mean() - other.mean()) < 5 * math.hypot(mine.std(), other.std()) / math.sqrt(4000)
        assert abs(mine.std() - other.std()) < 0.06 * other.std()


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
def test_the_share_of_flipped_images_is_p(p: float) -> None:
    flipped = 0
    for _ in range(2000):
        view = View(4, 4)
        HorizontalFlip(p).draw(view)
        flipped += view.flip
    assert abs(flipped / 2000 - p) <= 5 * (p * (1 - p) / 2000) ** 0.5


def test_two_flips_cancel_out() -> None:
    view = View(4, 4)
    HorizontalFlip(1).draw(view)
    HorizontalFlip(1).draw(view)
    assert not view.flip


def test_a_bad_probability_is_rejected() -> None:
    with pytest.raises(BadOption, match="p=2"):
        HorizontalFlip(2)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_the_share_of_images_flipped_vertically_is_p(p: float) -> None:
    flipped = 0
    for _ in range(2000):
        view = View(4, 4)
        VerticalFlip(p).draw(view)
        flipped += len(view.steps)
    assert abs(flipped / 2000 - p) <= 5 * (p * (1 - p) / 2000) ** 0.5
    assert (VerticalFlip(1)(photo()) == photo()[::-1]).all()
