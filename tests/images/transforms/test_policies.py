"""The policies choose and apply operations like those of torchvision."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from feedline.images import AutoAugment, RandAugment, TrivialAugmentWide
from feedline.images.geometry import View
from feedline.images.steps.geometric import BLACK
from feedline.images.steps.tables import apply_steps
from feedline.images.transforms import policies
from feedline.images.transforms.policies import _NAMES as NAMES
from feedline.images.transforms.policies import OPERATIONS, POLICIES
from tests.images.pictures import photo

pytestmark = pytest.mark.usefixtures("fixed_draws")

SIGNED = NAMES[1:10]
Applied = list[tuple[str, float]]


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Applied:
    """Return a list that collects the operations that policies apply, with their magnitudes."""
    found: Applied = []

    def noting(name: str) -> Any:
        return OPERATIONS[name]._replace(act=lambda view, value, *_: found.append((name, value)))

    monkeypatch.setattr(policies, "OPERATIONS", {name: noting(name) for name in OPERATIONS})
    return found


def drawn(policy: RandAugment | TrivialAugmentWide | AutoAugment, count: int) -> None:
    for _ in range(count):
        policy.draw(View(200, 100))


def check_shares(counts: Counter[Any], shares: dict[Any, float], total: int) -> None:
    assert set(counts) == {name for name, share in shares.items() if share}
    for name, share in shares.items():
        assert abs(counts[name] / total - share) <= 5 * math.sqrt(share * (1 - share) / total) + 1e-12, name


# The values of torchvision, at magnitude 9 of 31, for an image of 200 x 100.
AT_NINE = dict(zip(NAMES, (0, 0.09, 0.09, 60 / 331 * 150, 30 / 331 * 150, 9, *[0.27] * 4, 7, 178.5, 0, 0), strict=True))


def test_operations_of_randaugment_are_equally_likely_and_have_one_magnitude(applied: Applied) -> None:
    drawn(RandAugment(num_ops=3), 3000)
    assert len(applied) == 9000
    check_shares(Counter(name for name, _ in applied), dict.fromkeys(NAMES, 1 / 14), 9000)
    for name, value in applied:
        assert abs(value) == pytest.approx(AT_NINE[name])
        assert value >= 0 or name in SIGNED
    signs = Counter(value < 0 for name, value in applied if name in SIGNED)
    check_shares(signs, {True: 0.5, False: 0.5}, signs.total())


def test_magnitudes_of_trivialaugment_are_equally_likely(applied: Applied) -> None:
    drawn(TrivialAugmentWide(), 14 * 31 * 20)
    check_shares(Counter(name for name, _ in applied), dict.fromkeys(NAMES, 1 / 14), len(applied))
    most = dict.fromkeys(SIGNED, 0.99) | {"TranslateX": 32, "TranslateY": 32, "Rotate": 135, "Solarize": 255}
    for name, end in most.items():
        bins = Counter(round(abs(value) / end * 30, 6) for other, value in applied if other == name)
        check_shares(bins, dict.fromkeys(range(31), 1 / 31), bins.total())
    bits = Counter(value for name, value in applied if name == "Posterize")
    shares = Counter(round(8 - bin_ / 5) for bin_ in range(31))
    check_shares(bits, {one: count / 31 for one, count in shares.items()}, bits.total())


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_pairs_of_autoaugment_are_equally_likely_and_so_are_their_operations(policy: str, applied: Applied) -> None:
    drawn(AutoAugment(policy), 5_000)
    expected: dict[str, float] = defaultdict(float)
    for pair in POLICIES[policy]:
        for name, chance, _ in pair:
            expected[name] += chance / 25
    counts = Counter(name for name, _ in applied)
    for name, mean in expected.items():  # operations per image, at most two
        assert abs(counts[name] / 5_000 - mean) <= 5 * math.sqrt(2 * mean / 5_000), name
    levels = {
        name: {level for pair in POLICIES[policy] for other, _, level in pair if other == name} for name in counts
    }
    for name, value in applied:
        if name == "Rotate":
            assert min(abs(abs(value) - level * 30 / 9) for level in levels[name] if level is not None) < 1e-6


def test_the_learned_pairs_equal_those_of_the_paper() -> None:
    assert [len(pairs) for pairs in POLICIES.values()] == [25, 25, 25]
    assert POLICIES["imagenet"][0] == (("Posterize", 0.4, 8), ("Rotate", 0.6, 9))
    assert POLICIES["cifar10"][1] == (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9))
    assert POLICIES["svhn"][24] == (("ShearX", 0.7, 2), ("Invert", 0.1, None))


def changed(name: str, value: float, pixels: Any) -> Any:
    view = View(pixels.shape[1], pixels.shape[0])
    OPERATIONS[name].act(view, value, "nearest", BLACK)
    assert (view.width, view.height) == (pixels.shape[1], pixels.shape[0])
    return apply_steps(pixels, view.steps).astype(int)


def enhanced(kind: Any) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, value: kind(image).enhance(1 + value)


def moved(*matrix: float) -> Callable[[Image.Image, float], Image.Image]:
    def move(image: Image.Image, value: float) -> Image.Image:
        numbers = [value * one if place in (1, 2, 3, 5) else one for place, one in enumerate(matrix)]
        return image.transform(image.size, Image.Transform.AFFINE, numbers, Image.Resampling.NEAREST)

    return move


PILLOW: dict[str, tuple[Callable[[Image.Image, float], Image.Image], list[float]]] = {
    "Identity": (lambda image, value: image, [0]),
    "ShearX": (moved(1, 1, 0, 0, 1, 0), [0.1, -0.3, 0.99]),
    "ShearY": (moved(1, 0, 0, 1, 1, 0), [0.1, -0.3, 0.99]),
    "TranslateX": (moved(1, 0, -1, 0, 1, 0), [0, 3, -20]),
    "TranslateY": (moved(1, 0, 0, 0, 1, -1), [0, 3, -20]),
    "Rotate": (lambda image, value: image.rotate(value), [-30, 9, 135]),
    "Brightness": (enhanced(ImageEnhance.Brightness), [-0.9, -0.27, 0.27, 0.99]),
    "Color": (enhanced(ImageEnhance.Color), [-0.9, -0.27, 0.27, 0.99]),
    "Contrast": (enhanced(ImageEnhance.Contrast), [-0.9, -0.27, 0.27, 0.99]),
    "Sharpness": (enhanced(ImageEnhance.Sharpness), [-0.9, -0.27, 0.27, 0.99]),
    "Posterize": (lambda image, value: ImageOps.posterize(image, int(value)), [2, 4, 7, 8]),
    "Solarize": (lambda image, value: ImageOps.solarize(image, int(value)), [0, 102, 178, 255]),
    "AutoContrast": (lambda image, value: ImageOps.autocontrast(image), [0]),
    "Equalize": (lambda image, value: ImageOps.equalize(image), [0]),
    "Invert": (lambda image, value: ImageOps.invert(image), [0]),
}


@pytest.mark.parametrize("name", PILLOW)
def test_pillow_makes_the_same_pixels(name: str) -> None:
    pixels = photo()
    function, values = PILLOW[name]
    for value in values:
        expected = np.asarray(function(Image.fromarray(pixels), value))
        difference = np.abs(changed(name, value, pixels) - expected)
        if name.startswith("Shear") or name == "Rotate":  # a pixel exactly between two others may take either value
            assert (difference > 1).mean() < 0.05
        else:
            assert difference.max() <= 2
            assert (difference > 1).mean() < 0.003


def test_operations_that_change_nothing_add_no_step() -> None:
    view = View(10, 10)
    for name in (*SIGNED, "Identity"):
        OPERATIONS[name].act(view, 0.0, "nearest", BLACK)
    OPERATIONS["Posterize"].act(view, 8, "nearest", BLACK)
    assert not view.steps
