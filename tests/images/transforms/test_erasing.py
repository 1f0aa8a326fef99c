from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from feedline.errors import BadOption
from feedline.images import Compose, HorizontalFlip, Normalize, RandomErasing
from feedline.images.geometry import View
from feedline.images.steps.erasing import Erase
from tests.images.pictures import photo

pytestmark = pytest.mark.usefixtures("fixed_draws")


def drawn(erasing: RandomErasing, count: int, width: int = 200, height: int = 100) -> list[Erase]:
    found = []
    for _ in range(count):
        view = View(width, height)
        erasing.draw(view)
        found += [step for step in view.steps if isinstance(step, Erase)]
    return found


def test_the_share_of_erased_images_is_p() -> None:
    assert abs(len(drawn(RandomErasing(0.3), 3000)) / 3000 - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 3000)


def test_area_and_shape_are_distributed_as_defined() -> None:
    # The part is so small that every try fits, and nothing is drawn again.
    found = drawn(RandomErasing(1, scale=(0.02, 0.06), ratio=(0.5, 2)), 4000, 2000, 2000)
    share = np.array([one.width * one.height for one in found]) / 2000**2
    shape = np.log([one.height / one.width for one in found])
    for values, low, high in ((share, 0.02, 0.06), (shape, math.log(0.5), math.log(2))):
        assert low - 5e-3 <= values.min() <= values.max() <= high + 5e-3  # sides are whole pixels
        for part in (0.25, 0.5, 0.75):  # quantiles of a uniform distribution, within five standard errors
            error = 5 * math.sqrt(part * (1 - part) / len(values))
            assert abs(np.mean(values < low + part * (high - low)) - part) < error
    for place in ([one.left / (2000 - one.width) for one in found], [one.top / (2000 - one.height) for one in found]):
        assert 0 <= min(place) <= max(place) <= 1
        assert abs(np.mean(place) - 0.5) < 5 * math.sqrt(1 / 12 / len(found))


def test_an_area_that_never_fits_is_not_erased() -> None:
    assert not drawn(RandomErasing(1, scale=(1, 1)), 20)


def test_torchvision_draws_from_the_same_distribution() -> None:
    transforms = pytest.importorskip("torchvision.transforms.v2")
    erasing, image = transforms.RandomErasing(1), torch.empty(3, 100, 200)
    made = [erasing.make_params([image]) for _ in range(4000)]
    theirs = np.array([[one["j"], one["i"], one["w"], one["h"]] for one in made if one["v"] is not None])
    ours = np.array([[one.left, one.top, one.width, one.height] for one in drawn(RandomErasing(1), 4000)])
    assert abs(len(theirs) - len(ours)) < 5 * math.sqrt(4000)
    for mine, other in zip(ours.T, theirs.T, strict=True):
        assert abs(mine.mean() - other.mean()) < 5 * math.hypot(mine.std(), other.std()) / math.sqrt(3500)
        assert abs(mine.std() - other.std()) < 0.06 * other.std()


def erased_part(image: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    plain = Normalize()(photo())
    return float((image != plain).any(0).mean())


def test_values_after_normalising_are_normalised_values() -> None:
    image = Compose([Normalize(), RandomErasing(1, (0.2, 0.2), (1, 1), (0.5, -7, 3))])(photo())
    assert 0.17 < erased_part(image) < 0.23
    for channel, value in enumerate((0.5, -7, 3)):
        assert 0.17 < (image[channel] == value).mean() < 0.23
    assert erased_part(Compose([Normalize(), RandomErasing(0)])(photo())) == 0


def test_values_before_normalising_are_bytes() -> None:
    image = Compose([RandomErasing(1, (0.2, 0.2), (1, 1), 255), Normalize(mean=(0, 0, 0), std=(1, 1, 1))])(photo())
    assert 0.17 < (image == 1).all(0).mean() < 0.23
    with pytest.raises(BadOption, match="after Normalize"):
        RandomErasing(1, value=-1)(photo())


def test_random_values_have_the_distribution_of_their_surroundings() -> None:
    image = Compose([Normalize(), RandomErasing(1, (0.3, 0.3), (1, 1), "random")])(photo(seed=1))
    changed = image[image != Normalize()(photo(seed=1))]
    assert len(changed) > 3 * 3000
    assert abs(changed.mean()) < 5 / math.sqrt(len(changed))
    assert abs(changed.std() - 1) < 0.05
    pixels = RandomErasing(1, (0.3, 0.3), (1, 1), "random")(photo(seed=1))
    noise = pixels[pixels != photo(seed=1)]
    assert abs(noise.mean() - 127.5) < 3
    assert abs(noise.std() - 256 / math.sqrt(12)) < 3


def test_a_later_flip_flips_the_rectangle() -> None:
    view = View(40, 30)
    Normalize().draw(view)
    RandomErasing(1).draw(view)
    (before,) = view.erasures
    HorizontalFlip(1).draw(view)
    (after,) = view.erasures
    assert after.left == 40 - before.left - before.width
    image = Compose([Normalize(), RandomErasing(1, value=5), HorizontalFlip(1)])(photo())
    assert (image == 5).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomErasing(1.5), "p=1.5"),
        (lambda: RandomErasing(scale=(0.5, 1.5)), "scale="),
        (lambda: RandomErasing(ratio=(0, 1)), "ratio="),
        (lambda: RandomErasing(value="noise"), "value='noise'"),
        (lambda: RandomErasing(value=(1, 2)), "value="),
    ],
)
def test_bad_options_are_rejected(make: Callable[[], object], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make()
