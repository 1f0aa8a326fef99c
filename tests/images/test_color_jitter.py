from __future__ import annotations

import colorsys
import math
from collections import Counter

import numpy as np
import pytest
import torch

from feedline.errors import BadOption
from feedline.images import ColorJitter
from feedline.images.geometry import View
from feedline.images.rendering import colored
from tests.images.pictures import photo

pytestmark = pytest.mark.usefixtures("fixed_draws")


def drawn(jitter: ColorJitter, count: int) -> list[list[float]]:
    rows = []
    for _ in range(count):
        view = View(4, 4)
        jitter.draw(view)
        assert view.jitter is not None
        rows.append(view.jitter.tolist())
    return rows


def test_factors_are_uniform_in_their_ranges() -> None:
    rows = np.array(drawn(ColorJitter(0.4, 0.3, (0.5, 2.0), 0.1), 4000))
    for values, (low, high) in zip(rows.T, [(0.6, 1.4), (0.7, 1.3), (0.5, 2.0), (-0.1, 0.1)], strict=False):
        assert low - 1e-6 <= values.min() <= values.max() <= high + 1e-6
        assert abs(values.mean() - (low + high) / 2) < 5 * (high - low) / math.sqrt(12 * len(values))
        assert abs(values.std() - (high - low) / math.sqrt(12)) < 0.05 * (high - low)


def test_all_orders_are_equally_likely() -> None:
    orders = Counter(tuple(row[4:]) for row in drawn(ColorJitter(0.4, 0.4, 0.4, 0.1), 4800))
    assert len(orders) == 24
    assert sum((count - 200) ** 2 / 200 for count in orders.values()) < 60  # chi-square of 23 degrees: 1 in 30,000


def test_a_large_number_does_not_make_factors_negative() -> None:
    assert ColorJitter(brightness=3).brightness == (0, 4)


def test_nothing_to_change_is_nothing_drawn() -> None:
    view = View(4, 4)
    ColorJitter().draw(view)
    assert view.jitter is None


@pytest.mark.parametrize("options", [{"brightness": -1}, {"hue": 0.6}, {"hue": (-0.6, 0)}, {"contrast": (2, 1)}])
def test_ranges_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        ColorJitter(**options)


def changed(pixels: list[list[int]], *factors: float, order: tuple[int, ...] = (0, 1, 2, 3)) -> list[list[float]]:
    planes = np.array([pixels], np.float32).transpose(2, 0, 1).copy()
    result = colored(planes, np.array([*factors, *order], np.float32))
    return np.round(result.transpose(1, 2, 0)[0], 2).tolist()  # type: ignore[no-any-return]


def test_each_change_is_as_torchvision_defines_it() -> None:
    two = [[100, 50, 200], [20, 30, 40]]
    assert changed(two, 1.5, 1, 1, 0) == [[150, 75, 255], [30, 45, 60]]
    grey = [0.2989 * red + 0.587 * green + 0.114 * blue for red, green, blue in two]
    mean = sum(grey) / 2
    assert np.allclose(changed(two, 1, 0.5, 1, 0), (np.array(two) + mean) / 2, atol=0.01)
    assert np.allclose(changed(two, 1, 1, 0.5, 0), (np.array(two) + np.array(grey)[:, None]) / 2, atol=0.01)


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.05, 0.3, 0.5])
def test_the_hue_is_turned_as_the_standard_library_does(turn: float) -> None:
    pixels = [[100, 50, 200], [20, 30, 40], [255, 0, 0], [0, 255, 10], [3, 3, 3], [0, 0, 0], [90, 200, 200]]
    expected = []
    for red, green, blue in pixels:
        hue, saturation, value = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
        expected.append([255 * one for one in colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)])
    assert np.allclose(changed(pixels, 1, 1, 1, turn), expected, atol=0.05)


def test_the_order_matters_where_values_are_cut_off() -> None:
    two = [[200, 200, 200], [100, 100, 100]]
    assert changed(two, 2, 0.5, 1, 0, order=(0, 1, 2, 3)) != changed(two, 2, 0.5, 1, 0, order=(1, 0, 2, 3))


def test_torchvision_makes_the_same_pixels() -> None:
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    pixels = photo()
    image = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float() / 255
    image = functional.adjust_brightness(image, 1.3)
    image = functional.adjust_contrast(image, 0.7)
    image = functional.adjust_saturation(image, 1.4)
    image = functional.adjust_hue(image, 0.1)
    ours = colored(pixels.transpose(2, 0, 1).astype(np.float32), np.array([1.3, 0.7, 1.4, 0.1, 0, 1, 2, 3], np.float32))
    assert np.abs(ours - 255 * image.numpy()).max() < 0.5
