from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feedline.errors import BadOption
from feedline.images import Compose, RandomAffine, RandomRotation, Resize
from feedline.images.geometry import View
from feedline.images.steps.geometric import Warp
from tests.images.pictures import photo

pytestmark = pytest.mark.usefixtures("fixed_draws")


def differing(found: Any, expected: Any) -> float:
    assert found.shape == expected.shape
    return float((np.abs(found.astype(int) - expected.astype(int)) > 2).mean())


@pytest.mark.parametrize("angle", [0, 10, -77.5, 90, 180, 270, 300])
@pytest.mark.parametrize("expand", [False, True])
def test_an_image_is_rotated_like_with_pillow(angle: float, expand: bool) -> None:
    pixels = photo()
    expected = np.asarray(Image.fromarray(pixels).rotate(angle, expand=expand, fillcolor=(9, 8, 7)))
    found = RandomRotation((angle, angle), expand=expand, fill=(9, 8, 7))(pixels)
    assert differing(found, expected) < 0.02


def test_torchvision_rotates_in_the_same_way() -> None:
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    pixels = photo()
    image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    for angle in (0, 33, 90, 180, 211):
        for interpolation in ("nearest", "bilinear"):
            every: list[dict[str, Any]] = [{}, {"expand": True}, {"center": [10, 20]}]
            for options in every:
                ours = RandomRotation((angle, angle), interpolation, fill=50, **options)(pixels)
                theirs = functional.rotate(image, angle, mode_of(interpolation), fill=[50, 50, 50], **options)
                assert differing(ours, theirs.numpy().transpose(1, 2, 0)) < 0.03, (angle, interpolation, options)


# object: an enumeration of torchvision; older versions accept no names.
def mode_of(interpolation: str) -> object:
    return pytest.importorskip("torchvision.transforms").InterpolationMode(interpolation)


class Fixed:
    """A generator that always returns the same number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize("number", [0.0, 0.3, 0.5, 0.999])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_torchvision_maps_in_the_same_way(number: float, interpolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    monkeypatch.setattr("feedline.images.transforms.warping.rng", lambda: Fixed(number))
    pixels = photo()
    image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    ours = RandomAffine(40, (0.1, 0.2), (0.5, 1.5), (-20, 10, -5, 15), interpolation, 30)(pixels)
    theirs = functional.affine(
        image,
        angle=-40 + 80 * number,
        translate=[round(12 * (2 * number - 1)), round(18 * (2 * number - 1))],
        scale=0.5 + number,
        shear=[-20 + 30 * number, -5 + 20 * number],
        interpolation=mode_of(interpolation),
        fill=[30, 30, 30],
    )
    assert differing(ours, theirs.numpy().transpose(1, 2, 0)) < 0.02


def test_draws_are_uniform_in_their_ranges() -> None:
    found = []
    for _ in range(3000):
        view = View(100, 50)
        RandomAffine(0, translate=(0.2, 0.4), scale=(2, 3)).draw(view)
        (step,) = view.steps
        assert isinstance(step, Warp)
        a, b, c, d, e, f = step.map
        assert (b, d, a) == (0, 0, e)
        found.append((a, c - 50 * (1 - a), f - 25 * (1 - e)))
    scale, across, down = np.array(found).T
    for values, low, high in ((scale, 2, 3), (across, -20, 20), (down, -20, 20)):
        assert low - 1e-6 <= values.min() <= values.max() <= high + 1e-6
        assert abs(values.mean() - (low + high) / 2) < 5 * (high - low) / np.sqrt(12 * 3000)
        assert abs(values.std() - (high - low) / np.sqrt(12)) < 0.03 * (high - low)
    angles = []
    for _ in range(2000):
        view = View(10, 10)
        RandomRotation(30).draw(view)
        (step,) = view.steps
        assert isinstance(step, Warp)
        angles.append(np.degrees(np.arctan2(step.map[1], step.map[0])))
    assert -30 <= min(angles) <= max(angles) <= 30
    assert abs(np.mean(angles)) < 5 * 60 / np.sqrt(12 * 2000)


def test_a_resize_after_a_rotation_is_a_separate_pass() -> None:
    found = Compose([RandomRotation((45, 45), expand=True), Resize((20, 30))])(photo())
    assert found.shape == (20, 30, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomRotation(-1), "degrees=-1"),
        (lambda: RandomRotation((2, 1)), "degrees="),
        (lambda: RandomRotation(1, center=(1,)), "center="),
        (lambda: RandomAffine(0, translate=(0.5, 1.5)), "translate="),
        (lambda: RandomAffine(0, scale=(0, 1)), "scale="),
        (lambda: RandomAffine(0, shear=(1, 2, 3)), "shear="),
        (lambda: RandomAffine(0, interpolation="lanczos"), "interpolation="),
    ],
)
def test_bad_options_are_rejected(make: Callable[[], object], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make()
