from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.images import RandomResizedCrop
from feedline.images.geometry import View

pytestmark = pytest.mark.usefixtures("fixed_draws")


def boxes(crop: RandomResizedCrop, width: int, height: int, count: int = 4000) -> NDArray[np.float64]:
    found = []
    for _ in range(count):
        view = View(width, height)
        crop.draw(view)
        assert (view.height, view.width) == crop.size
        found.append(view.box)
    return np.array(found)


def test_area_and_shape_are_distributed_as_defined() -> None:
    # So small a part that every try fits, and nothing is drawn again.
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


def test_every_place_of_a_small_image_comes_up_to_the_last() -> None:
    left = boxes(RandomResizedCrop(2, scale=(0.24, 0.26), ratio=(1, 1)), 4, 4, 500)[:, 0]
    assert set(left) == {0, 1, 2}


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [(1000, 10, (493, 0, 13, 10)), (10, 1000, (0, 493, 10, 13)), (40, 40, (0, 0, 40, 40))],
)
def test_what_never_fits_becomes_the_middle(width: int, height: int, box: tuple[int, ...]) -> None:
    crop = RandomResizedCrop(8, scale=(5, 6))
    assert (boxes(crop, width, height, 3) == box).all()


@pytest.mark.parametrize("options", [{"scale": (0, 1)}, {"scale": (0.5, 0.1)}, {"ratio": (-1, 1)}, {"scale": 0.5}])
def test_ranges_that_are_none_are_refused(options: dict[str, tuple[float, float]]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        RandomResizedCrop(8, **options)


def test_torchvision_draws_from_the_same_distribution() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    image = torch.empty(3, 375, 500)
    theirs = np.array([transforms.RandomResizedCrop.get_params(image, (0.08, 1), (3 / 4, 4 / 3)) for _ in range(4000)])
    ours = boxes(RandomResizedCrop(8), 500, 375)[:, [1, 0, 3, 2]]
    for mine, other in zip(ours.T, theirs.T, strict=True):
        assert abs(mine.mean() - other.mean()) < 5 * math.hypot(mine.std(), other.std()) / math.sqrt(4000)
        assert abs(mine.std() - other.std()) < 0.06 * other.std()
