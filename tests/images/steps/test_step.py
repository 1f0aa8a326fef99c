"""Every step gives the same result with OpenCV, with NumPy, and with torch for a batch; sequences fuse tables."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.images.steps.colors import Blur, Hue, Saturation, Sharpness
from feedline.images.steps.geometric import Erase, Flip, Warp, Window
from feedline.images.steps.step import Matrix, Step
from feedline.images.steps.tables import (
    AutoContrast,
    Contrast,
    Equalize,
    apply_steps,
    apply_steps_to_batch,
    brightness,
    for_worker,
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
    if other == "batch" and not step.is_batched:
        pytest.skip("it is left to the worker")
    pictures = [photo(seed=seed) for seed in range(2)]
    before = [pixels.copy() for pixels in pictures]
    first = [step.apply(pixels) for pixels in pictures]
    if other == "numpy":
        monkeypatch.setattr("feedline.images.steps.step._opencv_of", lambda process: None)
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
def test_symmetric_steps_commute_with_a_flip_and_all_are_small(step: Step) -> None:
    assert len(pickle.dumps(step)) < 500
    assert pickle.loads(pickle.dumps(step)) == step
    pixels = photo()
    flipped_first = step.apply(np.ascontiguousarray(pixels[:, ::-1]))
    flipped_last = step.apply(pixels)[:, ::-1]
    if step.is_symmetric:
        assert np.abs(flipped_first.astype(int) - flipped_last).max() <= 1
    elif not isinstance(step, Flip):
        assert np.abs(flipped_first.astype(int) - flipped_last).max() > 1


TABLES: list[Step] = [brightness(1.4), posterize(4), solarize(90), invert(), AutoContrast(), Equalize(), Contrast(1.5)]
OTHERS: list[Step] = [Saturation(0.5), Flip(), Window(-3, 4, 20, 22), Sharpness(1.5)]


@given(st.lists(st.sampled_from(TABLES + OTHERS), max_size=6))
def test_a_composed_table_equals_its_tables_in_sequence(steps: list[Step]) -> None:
    pixels = photo(40, 30)
    expected = pixels
    for step in steps:
        expected = step.apply(expected)
    assert (apply_steps(pixels, steps) == expected).all()


def test_images_of_a_batch_may_differ_in_steps() -> None:
    rows: list[list[Step]] = [
        [],
        [brightness(1.3), Flip(vertical=True)],
        [Saturation(0.2), Flip()],
        [Warp((1, 0, 1, 0, 1, 2), 30, 20), Equalize()],
    ]
    pictures = [photo(30, 20, seed=seed) for seed in range(len(rows))]
    images = torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2).astype(np.float32))
    made = apply_steps_to_batch(images.clone(), rows).numpy().transpose(0, 2, 3, 1)
    for pixels, steps, found in zip(pictures, rows, made, strict=True):
        assert np.abs(found - apply_steps(pixels, steps)).max() <= 1


def test_what_a_device_cannot_do_is_left_to_the_worker() -> None:
    turned, window = Warp((0, 1, 0, 1, 0, 0), 90, 120), Window(0, 0, 4, 4)
    assert for_worker([], resize=False) == for_worker([invert(), turned, Saturation(1)], resize=False) == 0
    assert for_worker([invert(), turned, Saturation(1)], resize=True) == 2
    assert for_worker([invert(), window, Saturation(1), Erase(0, 0, 1, 1), Flip()], resize=False) == 4
