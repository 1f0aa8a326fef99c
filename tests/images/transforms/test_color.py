from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from feedline.errors import BadOption
from feedline.images import ColorJitter, GaussianBlur, RandomGrayscale, RandomSolarize
from feedline.images.geometry import View
from feedline.images.steps.colors import Hue, Saturation
from feedline.images.steps.filters import Blur
from feedline.images.steps.step import Step
from feedline.images.steps.tables import Contrast
from tests.images.pictures import photo

pytestmark = pytest.mark.usefixtures("fixed_draws")


def drawn(jitter: ColorJitter, count: int) -> list[list[Step]]:
    rows = []
    for _ in range(count):
        view = View(4, 4)
        jitter.draw(view)
        rows.append(view.steps)
    return rows


def test_factors_are_uniform_in_their_ranges() -> None:
    rows = drawn(ColorJitter(0, 0.3, (0.5, 2.0), 0.1), 4000)
    for kind, name, low, high in (
        (Contrast, "factor", 0.7, 1.3),
        (Saturation, "factor", 0.5, 2.0),
        (Hue, "turn", -0.1, 0.1),
    ):
        values = np.array([getattr(step, name) for steps in rows for step in steps if isinstance(step, kind)])
        assert len(values) == 4000
        assert low - 1e-6 <= values.min() <= values.max() <= high + 1e-6
        assert abs(values.mean() - (low + high) / 2) < 5 * (high - low) / math.sqrt(12 * len(values))
        assert abs(values.std() - (high - low) / math.sqrt(12)) < 0.05 * (high - low)


def test_all_orders_are_equally_likely() -> None:
    rows = drawn(ColorJitter(0.4, 0.4, 0.4, 0.1), 4800)
    orders = Counter(tuple(type(step).__name__ for step in steps) for steps in rows)
    assert len(orders) == 24
    assert (
        sum((count - 200) ** 2 / 200 for count in orders.values()) < 60
    )  # chi-square with 23 degrees of freedom: 1 in 30,000


def test_a_large_number_does_not_make_factors_negative() -> None:
    assert ColorJitter(brightness=3).brightness == (0, 4)


def test_nothing_is_drawn_if_nothing_changes() -> None:
    view = View(4, 4)
    ColorJitter().draw(view)
    assert not view.steps


@pytest.mark.parametrize("options", [{"brightness": -1}, {"hue": 0.6}, {"hue": (-0.6, 0)}, {"contrast": (2, 1)}])
def test_bad_ranges_are_rejected(options: dict[str, float]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        ColorJitter(**options)


@pytest.mark.parametrize(("transform", "p"), [(RandomGrayscale(0.2), 0.2), (RandomSolarize(128, 0.7), 0.7)])
def test_the_share_of_changed_images_is_p(transform: RandomGrayscale | RandomSolarize, p: float) -> None:
    changed = 0
    for _ in range(2000):
        view = View(4, 4)
        transform.draw(view)
        changed += len(view.steps)
    assert abs(changed / 2000 - p) <= 5 * (p * (1 - p) / 2000) ** 0.5


def test_sigmas_are_uniform_in_their_range() -> None:
    found = []
    for _ in range(2000):
        view = View(4, 4)
        GaussianBlur((5, 9), (0.5, 2.5)).draw(view)
        (step,) = view.steps
        assert isinstance(step, Blur)
        assert (step.taps_x, step.taps_y) == (5, 9)
        assert step.sigma_x == step.sigma_y
        found.append(step.sigma_x)
    assert 0.5 <= min(found) <= max(found) <= 2.5
    assert abs(np.mean(found) - 1.5) < 5 * 2 / math.sqrt(12 * 2000)


def test_torchvision_makes_the_same_pixels() -> None:
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    pixels = photo()
    image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    for step, expected in (
        (GaussianBlur((5, 9), 1.5), functional.gaussian_blur(image, [5, 9], [1.5, 1.5])),
        (GaussianBlur(23, 0.3), functional.gaussian_blur(image, [23, 23], [0.3, 0.3])),
        (RandomSolarize(100, 1), functional.solarize(image, 100)),
        (RandomGrayscale(1), functional.rgb_to_grayscale(image, 3)),
        (ColorJitter(brightness=(1.3, 1.3)), functional.adjust_brightness(image, 1.3)),
        (ColorJitter(contrast=(0.6, 0.6)), functional.adjust_contrast(image, 0.6)),
        (ColorJitter(saturation=(1.6, 1.6)), functional.adjust_saturation(image, 1.6)),
        (ColorJitter(hue=(-0.3, -0.3)), functional.adjust_hue(image, -0.3)),
    ):
        assert np.abs(step(pixels).astype(int) - expected.numpy().transpose(1, 2, 0)).max() <= 1, step


@pytest.mark.parametrize("options", [{"kernel_size": 4}, {"kernel_size": (3, 3, 3)}, {"sigma": 0}, {"sigma": (2, 1)}])
def test_bad_blurs_are_rejected(options: dict[str, int]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        GaussianBlur(**{"kernel_size": 3, **options})


def test_other_bad_options_are_rejected() -> None:
    with pytest.raises(BadOption, match="threshold=256"):
        RandomSolarize(256)
    with pytest.raises(BadOption, match="p=-1"):
        RandomGrayscale(-1)
