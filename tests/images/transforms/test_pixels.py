"""What transforms do to pixels: as NumPy and Pillow do it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from feedline import images
from feedline.errors import BadOption
from feedline.images.geometry import View
from feedline.images.steps.geometric import Warp
from tests.images.pictures import photo

pytestmark = pytest.mark.usefixtures("fixed_draws")
MODES = ["constant", "edge", "reflect", "symmetric"]


# Any, throughout: arrays of any dtype, and options.
def differing(found: Any, expected: Any) -> float:
    assert found.shape == expected.shape
    return float((np.abs(found.astype(int) - expected.astype(int)) > 2).mean())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("padding", "sides"), [(3, (3, 3, 3, 3)), ((2, 5), (2, 5, 2, 5)), ((1, 2, 3, 4), (1, 2, 3, 4)), (0, (0, 0, 0, 0))]
)
def test_an_image_is_padded_like_with_numpy(mode: Any, padding: Any, sides: tuple[int, int, int, int]) -> None:
    pixels = photo(20, 10)
    left, top, right, bottom = sides
    options = {"constant_values": 7} if mode == "constant" else {}
    expected = np.pad(pixels, ((top, bottom), (left, right), (0, 0)), mode, **options)
    assert (images.Pad(padding, 7, mode)(pixels) == expected).all()
    crop = images.RandomCrop((10, 20), padding, padding_mode=mode, fill=7)(pixels)
    places = [(x, y) for x in range(expected.shape[1] - 19) for y in range(expected.shape[0] - 9)]
    assert any((expected[y : y + 10, x : x + 20] == crop).all() for x, y in places)


def test_crops_after_other_steps_and_of_small_images() -> None:
    pixels = photo(20, 10)
    padded = images.Pad(2)(pixels)
    assert (images.Compose([images.Pad(2), images.RandomCrop((14, 24))])(pixels) == padded).all()
    assert images.RandomCrop((30, 20), pad_if_needed=True)(photo(12, 10)).shape == (30, 20, 3)
    turned = [images.RandomRotation((45, 45), expand=True), images.Resize((20, 30))]
    assert images.Compose(turned)(photo()).shape == (20, 30, 3)


@pytest.mark.parametrize("angle", [0, 10, -77.5, 90, 180, 270, 300])
@pytest.mark.parametrize("expand", [False, True])
def test_an_image_is_rotated_like_with_pillow(angle: float, expand: bool) -> None:
    expected = np.asarray(Image.fromarray(photo()).rotate(angle, expand=expand, fillcolor=(9, 8, 7)))
    found = images.RandomRotation((angle, angle), expand=expand, fill=(9, 8, 7))(photo())
    assert differing(found, expected) < 0.02


def test_flips() -> None:
    assert (images.VerticalFlip(1)(photo()) == photo()[::-1]).all()
    view = View(4, 4)
    images.HorizontalFlip(1).draw(view)
    images.HorizontalFlip(1).draw(view)
    assert not view.flip


@pytest.mark.parametrize("number", [0.0, 0.3, 0.999])
def test_an_affine_map_is_composed_as_in_torchvision(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = SimpleNamespace(random=lambda: number)
    monkeypatch.setattr("feedline.images.transforms.warping.rng", lambda: generator)
    view = View(120, 90)
    images.RandomAffine(40, (0.1, 0.2), (0.5, 1.5), (-20, 10, -5, 15)).draw(view)
    (step,) = view.steps
    assert isinstance(step, Warp)
    angle, x, y = np.radians([-40 + 80 * number, -20 + 30 * number, -5 + 20 * number])
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    expected = (0.5 + number) * turn @ [[1, 0], [-np.tan(y), 1]] @ [[1, -np.tan(x)], [0, 1]]
    found = np.reshape(step.map, (2, 3))
    assert np.allclose(found[:, :2], expected)
    center, move = np.array([60, 45]), np.round(np.array([12, 18]) * (2 * number - 1))
    assert np.allclose(found[:, 2], center + move - expected @ center)


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_are_scaled_by_mean_and_standard_deviation(dtype: str, channels_first: bool) -> None:
    result = images.Normalize(dtype=dtype, channels_first=channels_first)(photo())
    expected = (photo() / 255 - images.IMAGENET_MEAN) / images.IMAGENET_STD
    if channels_first:
        expected = expected.transpose(2, 0, 1)
        assert (images.ToChannelsFirst()(photo()) == photo().transpose(2, 0, 1)).all()
    if dtype == "bfloat16":
        assert result.dtype is torch.bfloat16
        result = result.float().numpy()
    else:
        assert result.dtype == dtype
    assert np.allclose(result, expected, atol={"float32": 1e-5, "float16": 3e-3, "bfloat16": 0.02}[dtype])


def erased(*transforms: Any) -> NDArray[np.float32]:
    made: NDArray[np.float32] = images.Compose(transforms)(photo())
    return made


def test_values_of_an_erased_part() -> None:
    """Normalised ones after Normalize, bytes before it; random ones have the distribution of their surroundings."""
    plain, part = images.Normalize()(photo()), {"scale": (0.3, 0.3), "ratio": (1, 1)}
    image = erased(images.Normalize(), images.RandomErasing(1, value=(0.5, -7, 3), **part))
    assert 0.27 < (image != plain).any(0).mean() < 0.33
    assert all(0.27 < (image[channel] == value).mean() < 0.33 for channel, value in enumerate((0.5, -7, 3)))
    image = erased(images.RandomErasing(1, value=255, **part), images.Normalize((0, 0, 0), (1, 1, 1)))
    assert 0.27 < (image == 1).all(0).mean() < 0.33
    image = erased(images.Normalize(), images.RandomErasing(1, value="random", **part))
    noise = image[image != plain]
    assert abs(noise.mean()) < 5 / math.sqrt(len(noise))
    assert abs(noise.std() - 1) < 0.05
    pixels = images.RandomErasing(1, value="random", **part)(photo())
    noise = pixels[pixels != photo()]
    assert abs(noise.mean() - 127.5) < 3
    assert abs(noise.std() - 256 / math.sqrt(12)) < 3
    assert (erased(images.Normalize(), images.RandomErasing(1, value=5), images.HorizontalFlip(1)) == 5).any()
    with pytest.raises(BadOption, match="after Normalize"):
        images.RandomErasing(1, value=-1)(photo())


def test_the_simclr_recipe_is_fused_into_one_step() -> None:
    pipeline = images.Compose(
        [
            images.RandomResizedCrop(32),
            images.HorizontalFlip(),
            images.RandomApply([images.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            images.RandomGrayscale(0.2),
            images.RandomApply([images.GaussianBlur(3)], p=0.5),
            images.RandomSolarize(128, p=0.2),
            images.Normalize(),
        ],
        decode="gpu",  # raises if the transforms cannot be fused
    )
    assert pipeline.decoding("auto")(photo()).shape == (3, 32, 32)
