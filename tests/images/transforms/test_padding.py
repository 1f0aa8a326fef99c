from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from feedline.errors import BadOption
from feedline.images import Compose, Pad, RandomCrop, Resize
from feedline.images.geometry import View
from tests.images.pictures import photo

pytestmark = pytest.mark.usefixtures("fixed_draws")


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize(
    ("padding", "sides"), [(3, (3, 3, 3, 3)), ((2, 5), (2, 5, 2, 5)), ((1, 2, 3, 4), (1, 2, 3, 4)), (0, (0, 0, 0, 0))]
)
def test_an_image_is_padded_like_with_numpy(mode: Any, padding: Any, sides: tuple[int, int, int, int]) -> None:
    pixels = photo(20, 10)
    left, top, right, bottom = sides
    options = {"constant_values": 7} if mode == "constant" else {}
    expected = np.pad(pixels, ((top, bottom), (left, right), (0, 0)), mode, **options)
    assert (Pad(padding, 7, mode)(pixels) == expected).all()


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_torchvision_pads_in_the_same_way(mode: str) -> None:
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    pixels = photo(20, 14)
    image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    expected = functional.pad(image, [1, 2, 3, 4], fill=[9, 8, 7] if mode == "constant" else None, padding_mode=mode)
    assert (Pad((1, 2, 3, 4), (9, 8, 7), mode)(pixels) == expected.numpy().transpose(1, 2, 0)).all()


@pytest.mark.parametrize("padding", [None, 2])
def test_every_position_is_equally_likely(padding: int | None) -> None:
    places: Counter[tuple[float, ...]] = Counter()
    for _ in range(6000):
        view = View(10, 8)
        RandomCrop((6, 8), padding).draw(view)
        assert (view.width, view.height) == (8, 6)
        places[view.matrix[2], view.matrix[5]] += 1
    least = 0 if padding is None else -2
    assert set(places) == {(-x, -y) for x in range(least, 3 - least) for y in range(least, 3 - least)}
    mean = 6000 / len(places)
    assert sum((count - mean) ** 2 / mean for count in places.values()) < 3 * len(places) + 10


def test_a_crop_inside_the_image_is_part_of_the_first_cut() -> None:
    view = View(400, 300)
    Resize(100).draw(view)
    RandomCrop(80).draw(view)
    assert not view.steps
    assert view.box[3] == 240


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_pixels_equal_those_of_the_padded_image(mode: Any) -> None:
    pixels = photo(12, 10)
    padded = np.pad(pixels, ((4, 4), (4, 4), (0, 0)), mode)
    crop = RandomCrop(10, 4, padding_mode=mode)
    for _ in range(20):
        found = crop(pixels)
        at = [(x, y) for x in range(11) for y in range(9) if (padded[y : y + 10, x : x + 10] == found).all()]
        assert at


def test_small_images_are_padded_on_request() -> None:
    assert RandomCrop((30, 20), pad_if_needed=True)(photo(12, 10)).shape == (30, 20, 3)
    with pytest.raises(BadOption, match=r"30 x 20 pixels out of 10 x 12.*pad_if_needed=True"):
        RandomCrop((30, 20))(photo(12, 10))


def test_torchvision_draws_from_the_same_distribution() -> None:
    transforms = pytest.importorskip("torchvision.transforms.v2")
    theirs = transforms.RandomCrop((30, 8), padding=1, pad_if_needed=True)
    image = torch.zeros(3, 9, 10)
    drawn = [theirs.make_params([image]) for _ in range(3000)]
    expected = {(one["left"] - one["padding"][0], one["top"] - one["padding"][1]) for one in drawn}
    found = set()
    for _ in range(3000):
        view = View(10, 9)
        RandomCrop((30, 8), 1, True).draw(view)
        found.add((-view.matrix[2], -view.matrix[5]))
    assert found == expected


def test_a_crop_may_follow_other_steps() -> None:
    pixels = photo(20, 10)
    assert (Compose([Pad(2), RandomCrop((14, 24))])(pixels) == Pad(2)(pixels)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pad(-1), "padding=-1"),
        (lambda: Pad((1, 2, 3)), "padding="),
        (lambda: Pad(1, padding_mode="wrap"), "padding_mode='wrap'"),
        (lambda: Pad(1, fill=300), "fill=300"),
        (lambda: RandomCrop(0), "size=0"),
    ],
)
def test_bad_options_are_rejected(make: Callable[[], object], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make()
