from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from feedline.errors import BadOption
from feedline.images import (
    ColorJitter,
    Compose,
    GaussianBlur,
    HorizontalFlip,
    Normalize,
    RandomApply,
    RandomChoice,
    RandomGrayscale,
    RandomResizedCrop,
    RandomSolarize,
)
from feedline.images.geometry import View
from tests.images.pictures import photo

pytestmark = pytest.mark.usefixtures("fixed_draws")


def kinds(transform: RandomApply | RandomChoice, count: int) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for _ in range(count):
        view = View(10, 10)
        transform.draw(view)
        found[tuple(type(step).__name__ for step in view.steps)] += 1
    return found


def test_all_transforms_are_applied_or_none() -> None:
    found = kinds(RandomApply([RandomGrayscale(1), GaussianBlur(3)], 0.8), 3000)
    assert set(found) == {(), ("Saturation", "Blur")}
    assert abs(found[()] / 3000 - 0.2) < 5 * (0.16 / 3000) ** 0.5


@pytest.mark.parametrize(("p", "share"), [(None, 0.5), ([1, 3], 0.25), ([0, 2], 0)])
def test_one_transform_is_chosen(p: list[float] | None, share: float) -> None:
    found = kinds(RandomChoice([RandomGrayscale(1), GaussianBlur(3)], p), 3000)
    assert found[("Saturation",)] + found[("Blur",)] == 3000
    assert abs(found[("Saturation",)] / 3000 - share) <= 5 * (share * (1 - share) / 3000) ** 0.5


def test_the_simclr_recipe_is_fused_into_one_step() -> None:
    pipeline = Compose(
        [
            RandomResizedCrop(32),
            HorizontalFlip(),
            RandomApply([ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            RandomGrayscale(0.2),
            RandomApply([GaussianBlur(3)], p=0.5),
            RandomSolarize(128, p=0.2),
            Normalize(),
        ],
        decode="gpu",  # raises if the transforms cannot be fused
    )
    assert pipeline.decoding("auto")(photo()).shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomApply([]), "at least one"),
        (lambda: RandomApply(RandomGrayscale()), "RandomGrayscale.*not a list"),  # type: ignore[arg-type]
        (lambda: RandomApply([RandomResizedCrop(8)]), "RandomResizedCrop.*Put it into the Compose"),
        (lambda: RandomApply([Normalize()]), "Normalize"),
        (lambda: RandomChoice([len]), "len"),  # type: ignore[list-item]
        (lambda: RandomChoice([HorizontalFlip()], p=[1, 2]), "p="),
        (lambda: RandomChoice([HorizontalFlip()], p=[-1]), "p="),
    ],
)
def test_bad_options_are_rejected(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make()
