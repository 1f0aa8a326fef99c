"""Every step gives the same result with OpenCV, with NumPy, and with torch for a batch."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from feedline.images.steps.colors import Hue, Saturation
from feedline.images.steps.erasing import Erase
from feedline.images.steps.filters import Blur, Sharpness
from feedline.images.steps.geometric import Flip, Warp, Window
from feedline.images.steps.step import Matrix, Step, after, inverse
from feedline.images.steps.tables import (
    AutoContrast,
    Contrast,
    Equalize,
    brightness,
    invert,
    posterize,
    solarize,
)
from tests.images.pictures import photo

TURN: Matrix = (0.9, -0.3, 20.25, 0.3, 0.8, -6.5)
STEPS: list[Step] = [
    brightness(0.4),
    brightness(1.7),
    posterize(3),
    solarize(100),
    invert(),
    Contrast(0.3),
    Contrast(1.8),
    AutoContrast(),
    Equalize(),
    Saturation(0),
    Saturation(0.4),
    Saturation(1.9),
    Hue(-0.31),
    Hue(0.1),
    Sharpness(0.1),
    Sharpness(1.9),
    Blur(5, 9, 1.3, 2.1),
    Flip(),
    Flip(vertical=True),
    Window(5, 6, 70, 50),
    Window(-5, -6, 150, 110, "constant", (1, 2, 3)),
    Window(-5, 6, 60, 110, "edge"),
    Window(-5, 6, 60, 110, "reflect"),
    Window(-150, 6, 400, 20, "symmetric"),
    Warp((1, 0, 7, 0, 1, -3), 120, 90),
    Warp(TURN, 120, 90, "bilinear", (10, 20, 30)),
    Warp(TURN, 100, 140, "nearest", (10, 20, 30)),
    Erase(10, 20, 30, 40, (1, 2, 3)),
    Erase(10, 20, 30, 40, None, 5),
]


def name(step: Step) -> str:
    return f"{type(step).__name__}-{STEPS.index(step)}"


@pytest.mark.parametrize("step", STEPS, ids=name)
@pytest.mark.parametrize("other", ["numpy", "batch"])
def test_all_ways_to_apply_a_step_agree(step: Step, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = [photo(seed=seed) for seed in range(2)]
    before = [pixels.copy() for pixels in pictures]
    first = [step.apply(pixels) for pixels in pictures]
    if other == "numpy":
        monkeypatch.setattr("feedline.images.opencv._opencv_of", lambda process: None)
        second = [step.apply(pixels) for pixels in pictures]
    else:
        images = torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2).astype(np.float32))
        found = step.apply_batch([step, step], images)
        assert found.dtype is torch.float32
        assert (found == found.round()).all()
        second = list(found.numpy().transpose(0, 2, 3, 1))
    for mine, theirs in zip(first, second, strict=True):
        assert mine.dtype == np.uint8
        assert mine.shape == theirs.shape
        difference = np.abs(mine.astype(float) - theirs)
        if isinstance(step, Warp):  # a pixel exactly between two others may take either value
            assert np.quantile(difference, 0.99) <= 1
        else:
            assert difference.max() <= (4 if isinstance(step, Hue) else 1)
        assert difference.mean() < 0.6
    assert all((pixels == old).all() for pixels, old in zip(pictures, before, strict=True))


@pytest.mark.parametrize("step", STEPS, ids=name)
def test_steps_can_be_pickled_and_are_small(step: Step) -> None:
    sent = pickle.dumps(step)
    assert len(sent) < 500
    assert pickle.loads(sent) == step


@pytest.mark.parametrize("step", STEPS, ids=name)
def test_symmetric_steps_commute_with_a_flip(step: Step) -> None:
    pixels = photo()
    flipped_first = step.apply(np.ascontiguousarray(pixels[:, ::-1]))
    flipped_last = step.apply(pixels)[:, ::-1]
    if step.is_symmetric:
        assert np.abs(flipped_first.astype(int) - flipped_last).max() <= 1
    elif not isinstance(step, Flip):
        assert np.abs(flipped_first.astype(int) - flipped_last).max() > 1


def test_maps_can_be_composed_and_inverted() -> None:
    back = after(TURN, inverse(TURN))
    assert np.allclose(back, (1, 0, 0, 0, 1, 0))
    a, b, c, d, e, f = after((2.0, 0.0, 1.0, 0.0, 3.0, 2.0), TURN)
    x, y = 2 * 5 + 1, 3 * 7 + 2
    assert np.allclose((a * 5 + b * 7 + c, d * 5 + e * 7 + f), (0.9 * x - 0.3 * y + 20.25, 0.3 * x + 0.8 * y - 6.5))
