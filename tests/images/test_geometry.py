from __future__ import annotations

import pytest

from feedline.errors import BadOption
from feedline.images.geometry import View, checked_numbers, checked_size


def test_a_crop_of_a_resized_part_is_a_part_of_the_image() -> None:
    view = View(400, 300)
    view.crop(100, 50, 200, 200)
    view.resize(100, 50)
    view.crop(10, 10, 50, 25)
    assert (view.box, view.width, view.height) == ((120, 90, 100, 100), 50, 25)


def test_a_crop_after_a_flip_is_taken_from_the_other_side() -> None:
    view = View(400, 300)
    view.flip = True
    view.crop(0, 0, 100, 300)
    assert view.box == (300, 0, 100, 300)


@pytest.mark.parametrize(("box", "factor"), [(223, 1), (448, 2), (900, 4), (1791, 4), (1792, 8), (9000, 8)])
def test_an_image_is_decoded_smaller_if_enough_pixels_are_left(box: int, factor: int) -> None:
    view = View(10_000, 10_000)
    view.crop(0, 0, box, 10_000)
    view.resize(224, 224)
    assert view.factor == factor


def test_sizes_are_a_square_or_height_and_width() -> None:
    assert checked_size(224) == (224, 224)
    assert checked_size((100, 200)) == (100, 200)


@pytest.mark.parametrize("size", [0, -1, (1, 2, 3), (1,), "224", 2.5, (0, 3), None, True])
def test_other_sizes_are_refused(size: object) -> None:
    with pytest.raises(BadOption, match="side of a square"):
        checked_size(size)


@pytest.mark.parametrize("value", [1, (1,), (1, 2, 3), "ab", None])
def test_other_than_so_many_numbers_are_refused(value: object) -> None:
    with pytest.raises(BadOption, match=r"scale=.* 2 numbers"):
        checked_numbers("scale", value, 2)
