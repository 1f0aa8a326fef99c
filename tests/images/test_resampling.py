"""Crop, resize, flip and normalise a batch of images of different sizes: in torch anywhere, in Triton on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from feedline.images.geometry import Finish
from feedline.images.resampling import RaggedImages, resample

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]

SIZES = [(375, 500), (60, 40), (224, 224), (900, 100), (17, 333)]
BOXES = [(31, 12, 301, 222), (0, 0, 40, 60), (0, 0, 224, 224), (3, 100, 90, 711), (100, 0, 16, 17)]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images(device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for height, width in SIZES:
        coarse = torch.rand((1, 3, 8, 9), generator=generator) * 255
        smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 255)
        made.append((smooth[0] + torch.randn((3, height, width), generator=generator) * 8).clamp(0, 255).byte())
    return [image.to(device) for image in made]


def packed(images: list[torch.Tensor]) -> RaggedImages:
    """Copy images into one block of memory, as decoders write them."""
    sizes = np.array([(image.shape[2], image.shape[1]) for image in images], np.int64)
    ragged = RaggedImages.of_planes(sizes, images[0].device)
    for number, image in enumerate(images):
        ragged.image(number).copy_(image)
    return ragged


def pillow(image: torch.Tensor, box: tuple[int, int, int, int], size: tuple[int, int], flip: int) -> torch.Tensor:
    left, top, width, height = box
    picture = Image.fromarray(image.cpu().permute(1, 2, 0).numpy()).crop((left, top, left + width, top + height))
    made = np.array(picture.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    return torch.from_numpy(made[:, ::-1].copy() if flip else made).permute(2, 0, 1)


@pytest.mark.parametrize("size", [(224, 224), (100, 160), (8, 300)])
@pytest.mark.parametrize("device", DEVICES)
def test_pixels_equal_those_of_pillow(device: str, size: tuple[int, int]) -> None:
    sources = images(device)
    rows, flips = torch.tensor([4, 0, 3, 1, 2]), torch.tensor([0, 1, 1, 0, 0], dtype=torch.uint8)
    out = torch.full((6, 3, *size), 7, dtype=torch.uint8, device=device)
    resample(packed(sources), rows, torch.tensor(BOXES, dtype=torch.float32), flips, out, None)
    for image, row, box, flip in zip(sources, rows.tolist(), BOXES, flips.tolist(), strict=True):
        expected = pillow(image, box, size, flip)
        assert (out[row].cpu().int() - expected.int()).abs().max() <= 1
    assert bool((out[5] == 7).all())  # a row of no image


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_values_are_normalised_in_the_same_pass(device: str, dtype: torch.dtype) -> None:
    sources = images(device)
    rows, flips = torch.arange(5), torch.zeros(5, dtype=torch.uint8)
    boxes = torch.tensor(BOXES, dtype=torch.float32)
    plain = torch.empty((5, 3, 64, 64), device=device)
    resample(packed(sources), rows, boxes, flips, plain, None)
    out = torch.empty((5, 3, 64, 64), device=device, dtype=dtype)
    resample(packed(sources), rows, boxes, flips, out, Finish(64, 64, MEAN, STD, str(dtype), True))
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close(out, ((plain / 255 - mean) / std).to(dtype), rtol=0.01, atol=0.02)
