from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.images.geometry import View
from feedline.images.rendering import cut, finish_into
from feedline.images.steps.geometric import Erase, Flip, Warp, Window
from feedline.images.steps.tables import Lookup, invert


def test_a_crop_of_a_resized_part_is_a_part_of_the_image() -> None:
    view = View(400, 300)
    view.crop(100, 50, 200, 200)
    view.resize(100, 50)
    view.crop(10, 10, 50, 25)
    assert (view.box, view.width, view.height) == ((120, 90, 100, 100), 50, 25)
    assert moved(view, 120, 90) == (0, 0)
    assert moved(view, 220, 190) == (50, 25)


def moved(view: View, x: float, y: float) -> tuple[float, float]:
    for (a, b, c, d, e, f), _, _ in view.moves():
        x, y = a * x + b * y + c, d * x + e * y + f
    return x, y


@given(st.data())
def test_the_map_gives_the_new_place_of_each_pixel(data: st.DataObject) -> None:
    """A bright pixel is found at the place that the map gives."""
    view, cropped = View(16, 12), False
    for _ in range(data.draw(st.integers(0, 5))):
        kind = data.draw(st.sampled_from(["crop", "mirror", "step", "window", "upside down", "turn"]))
        if kind == "crop":
            cropped = True
            view.crop(0, 1, view.width - 1, view.height - 1)
        elif kind == "mirror":
            view.mirror()
        elif kind == "step":
            view.add(invert())
        elif kind == "window":
            view.add(Window(-2, 1, view.width + 3, view.height + 1))
        elif kind == "turn":
            view.add(Warp((0, -1, view.height, 1, 0, 0), view.height, view.width))
        else:
            view.add(Flip(vertical=True))
    x, y = data.draw(st.integers(0, 15)), data.draw(st.integers(0, 11))
    pixels = np.zeros((12, 16, 3), np.uint8)
    pixels[y, x] = 200
    view.steps = [step for step in view.steps if not isinstance(step, Lookup)]
    made = np.empty(view.finish().shape, np.uint8)
    finish_into(made, cut(pixels, view.box, *view.cut_size), view.finish(), flip=view.flip, steps=view.steps)
    column, row = moved(view, x + 0.5, y + 0.5)
    is_visible = 0 <= column < view.width and 0 <= row < view.height
    assert is_visible or not made.any()
    if made.any() or (is_visible and not cropped):  # a crop may have removed it before padding
        assert made[int(row), int(column), 0] == 200


def test_a_flip_moves_before_steps_that_commute_with_it() -> None:
    view = View(40, 30)
    view.add(invert())
    view.mirror()
    assert (view.flip, len(view.steps)) == (True, 1)
    view.add(Window(1, 2, 3, 4))
    view.mirror()
    assert (view.flip, view.steps[-1]) == (True, Flip())


def test_a_flip_also_moves_erasures_after_normalising() -> None:
    view = View(40, 30)
    view.erasures.append(Erase(5, 6, 10, 12))
    view.mirror()
    assert view.erasures == [Erase(25, 6, 10, 12)]


@pytest.mark.parametrize(("box", "factor"), [(223, 1), (448, 2), (900, 4), (1791, 4), (1792, 8), (9000, 8)])
def test_an_image_is_decoded_smaller_if_enough_pixels_remain(box: int, factor: int) -> None:
    view = View(10_000, 10_000)
    view.crop(0, 0, box, 10_000)
    view.resize(224, 224)
    assert view.factor == factor
