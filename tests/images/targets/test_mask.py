"""A mask moves exactly like its image, and gets no new values except its fill."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray
from PIL import Image

from feedline import images
from feedline.errors import BadOption, CorruptSource
from tests.images.files import stored
from tests.images.targets.moves import Padded, Warped, moves, whole_pixels

HEIGHT, WIDTH = 30, 44


def shapes() -> NDArray[np.uint8]:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[4:20, 6:30] = 1
    mask[12:28, 20:40] = 1
    return mask


def image_of(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.repeat(mask[..., None] * np.uint8(255), 3, 2)


# Any, throughout: transforms, and masks in any form.
def moved(mask: Any, transforms: Any, image: NDArray[np.uint8] | None = None, **options: Any) -> Any:
    pipeline = images.Compose(transforms, targets={"mask": images.Mask(**options)})
    return pipeline({"image": np.zeros((HEIGHT, WIDTH, 3), np.uint8) if image is None else image, "mask": mask})


@given(whole_pixels)
def test_a_mask_that_equals_the_image_stays_equal(transforms: Any) -> None:
    numbers = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH), np.uint8)
    sample = moved(numbers, transforms, np.repeat(numbers[..., None], 3, 2))
    assert np.array_equal(sample["mask"], sample["image"][..., 1])


@given(moves)
def test_a_mask_equals_the_image_except_for_interpolation(transforms: Any) -> None:
    mask = shapes()
    sample = moved(mask, transforms, image_of(mask))
    values = sample["image"][..., 0].astype(int)
    assert sample["mask"].shape == values.shape
    assert set(np.unique(sample["mask"])) <= {0, 1}
    near = np.pad(values, 1, "edge")
    around = np.stack([near[y : y + values.shape[0], x : x + values.shape[1]] for y in range(3) for x in range(3)])
    constant = (around.min(0) == around.max(0)) & (values % 255 == 0)
    assert np.array_equal(sample["mask"][constant] * 255, values[constant])


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float32])
def test_masks_of_all_dtypes(dtype: Any) -> None:
    mask = (np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % 200 > 50).astype(dtype)
    found = moved(mask, [images.Resize((50, 60)), images.HorizontalFlip(1.0)])["mask"]
    assert found.dtype == mask.dtype
    assert found.shape == (50, 60)
    assert found.flags.c_contiguous
    assert np.array_equal(np.unique(found), np.unique(mask))
    tensor = moved(torch.from_numpy(mask), [images.HorizontalFlip(1.0)])["mask"]
    assert torch.equal(tensor, torch.from_numpy(mask[:, ::-1].copy()))


def test_each_object_may_have_its_own_mask() -> None:
    masks = np.random.default_rng(0).integers(0, 2, (5, HEIGHT, WIDTH))
    for transforms in ([images.CenterCrop(20)], [Warped(30, 1, 0)]):
        found = moved(masks, transforms)["mask"]
        assert len(found) == 5
        for one, mask in zip(found, masks, strict=True):
            assert np.array_equal(one, moved(mask, transforms)["mask"])
    assert moved(masks[:0], [images.CenterCrop(20)])["mask"].shape == (0, 20, 20)


def test_areas_beyond_the_image_get_the_fill_value() -> None:
    mask = np.ones((HEIGHT, WIDTH), np.uint8)
    found = moved(mask, [Padded(2, 3, 4, 5, "constant")], fill=255)["mask"]
    assert (found[3:-5, 2:-4] == 1).all()
    found[3:-5, 2:-4] = 255
    assert (found == 255).all()
    assert moved(mask, [Warped(45, 1, 0)], fill=255)["mask"][0, 0] == 255
    assert (moved(mask, [Padded(2, 3, 4, 5, "edge")], fill=255)["mask"] == 1).all()


def test_files() -> None:
    mask = shapes() * 7
    palette = Image.fromarray(mask).convert("P")
    palette.putdata(mask.ravel().tolist())
    palette.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    wide = Image.fromarray(mask.astype(np.uint16) * 999)
    for given_, expected in [
        (stored(Image.fromarray(mask), "PNG"), mask),
        (np.frombuffer(stored(Image.fromarray(mask), "PNG"), np.uint8), mask),
        ({"bytes": stored(palette, "PNG"), "path": None}, mask),
        (stored(palette, "PNG"), mask),
        (palette, mask),
        (stored(Image.fromarray(mask > 0), "PNG"), mask > 0),
        (stored(wide, "PNG"), mask.astype(int) * 999),
        (stored(wide, "TIFF"), mask.astype(int) * 999),
    ]:
        assert np.array_equal(moved(given_, [images.HorizontalFlip(1.0)])["mask"], expected[:, ::-1])


def test_damaged_files() -> None:
    data = stored(Image.fromarray(shapes()), "PNG")
    for end in range(0, len(data) - 8, 7):  # without the checksum at the end no pixel is lost
        with pytest.raises(CorruptSource):
            moved(data[:end], [])
    for bit in range(0, 8 * len(data), 37):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(CorruptSource, BadOption):
            assert np.array_equal(moved(bytes(damaged), [])["mask"], shapes())


def test_malformed_masks_are_rejected() -> None:
    with pytest.raises(BadOption, match=r"\(10, 10\).* 30 x 44"):
        moved(np.zeros((10, 10)), [])
    with pytest.raises(BadOption, match="R, G, B"):
        moved(stored(Image.new("RGB", (WIDTH, HEIGHT)), "PNG"), [])
    with pytest.raises(BadOption, match="a str"):
        moved("mask.png", [])


def test_a_mask_with_an_exif_orientation_is_turned_like_its_image() -> None:
    pixels = np.zeros((30, 40), np.uint8)
    pixels[:10, :15] = 255
    exif = Image.Exif()
    exif[0x0112] = 3
    pipeline = images.Compose([images.Resize((30, 40))], targets={"mask": images.Mask()})
    file = stored(pixels, "PNG", exif=exif)
    found = pipeline({"image": file, "mask": file})
    assert np.array_equal(found["mask"], pixels[::-1, ::-1])
    assert np.array_equal(found["image"][..., 0], found["mask"])
