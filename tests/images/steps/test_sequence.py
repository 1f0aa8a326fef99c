from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.images.steps import sequence
from feedline.images.steps.colors import Saturation
from feedline.images.steps.filters import Sharpness
from feedline.images.steps.geometric import Flip, Warp, Window
from feedline.images.steps.sequence import apply_steps, apply_steps_to_batch, apply_to_last_table, moving_steps
from feedline.images.steps.step import Pixels, Step
from feedline.images.steps.tables import (
    AutoContrast,
    Contrast,
    Equalize,
    Table,
    brightness,
    invert,
    looked_up,
    posterize,
    solarize,
)
from tests.images.pictures import photo

TABLES: list[Step] = [brightness(1.4), posterize(4), solarize(90), invert(), AutoContrast(), Equalize(), Contrast(1.5)]
OTHERS: list[Step] = [Saturation(0.5), Flip(), Window(-3, 4, 20, 22), Sharpness(1.5)]


@given(st.lists(st.sampled_from(TABLES + OTHERS), max_size=6))
def test_a_composed_table_equals_its_tables_in_sequence(steps: list[Step]) -> None:
    pixels = photo(40, 30)
    expected = pixels
    for step in steps:
        expected = step.apply(expected)
    assert (apply_steps(pixels, steps) == expected).all()


def test_consecutive_tables_take_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    def counting(pixels: Pixels, table: Table) -> Pixels:
        passes.append(1)
        return looked_up(pixels, table)

    monkeypatch.setattr(sequence, "looked_up", counting)
    apply_steps(photo(40, 30), TABLES[:4])
    assert len(passes) == 1
    _, table = apply_to_last_table(photo(40, 30), [*OTHERS, Equalize(), *TABLES[:4]])
    assert len(passes) == 1  # left to the caller
    assert table is not None
    assert table.shape == (3, 256)


def test_images_of_a_batch_may_differ_in_steps_and_sizes() -> None:
    rows: list[list[Step]] = [
        [],
        [brightness(1.3), Window(2, 3, 30, 20)],
        [Window(0, 0, 30, 20), Saturation(0.2), Flip()],
        [Window(-4, -5, 30, 20), brightness(0.7)],
        [Warp((1, 0, 1, 0, 1, 2), 30, 20), Equalize()],
    ]
    sizes = [(30, 20), (50, 40), (35, 60), (30, 20), (30, 20)]
    pictures = [photo(*size, seed=seed) for seed, size in enumerate(sizes)]
    images = [torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32)) for pixels in pictures]
    before = [image.clone() for image in images]
    made = apply_steps_to_batch(images, rows)
    for pixels, steps, image, old, source in zip(pictures, rows, made, before, images, strict=True):
        expected = apply_steps(pixels, steps)
        assert expected.shape == (20, 30, 3)
        assert np.abs(image.numpy().transpose(1, 2, 0) - expected).max() <= 1
        assert (old == source).all()


def test_the_last_step_that_moves_pixels_is_found() -> None:
    assert moving_steps([]) == 0
    assert moving_steps([invert(), Saturation(1)]) == 0
    assert moving_steps([invert(), Flip(), Saturation(1)]) == 2
