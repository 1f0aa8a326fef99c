from __future__ import annotations

import pytest

from feedline.errors import BadOption
from feedline.images import HorizontalFlip
from feedline.images.geometry import View

pytestmark = pytest.mark.usefixtures("fixed_draws")


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
def test_so_many_images_are_flipped(p: float) -> None:
    flipped = 0
    for _ in range(2000):
        view = View(4, 4)
        HorizontalFlip(p).draw(view)
        flipped += view.flip
    assert abs(flipped / 2000 - p) <= 5 * (p * (1 - p) / 2000) ** 0.5


def test_two_flips_are_none() -> None:
    view = View(4, 4)
    HorizontalFlip(1).draw(view)
    HorizontalFlip(1).draw(view)
    assert not view.flip


def test_no_probability_is_refused() -> None:
    with pytest.raises(BadOption, match="p=2"):
        HorizontalFlip(2)
