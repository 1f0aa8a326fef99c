"""What transforms do to pixels: as NumPy, Pillow and torchvision do it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from feedline import images
from feedline.errors import BadOption
from feedline.images.geometry import View
from tests.images.pictures import photo

pytestmark = pytest.mark.usefixtures("fixed_draws")
MODES = ["constant", "edge", "reflect", "symmetric"]


# Any, throughout: arrays of any dtype, and options.
def differing(found: Any, expected: Any) -> float:
    assert found.shape == expected.shape
    return float((np.abs(found.astype(int) - expected.astype(int)) > 2).mean())


def planes() -> torch.Tensor:
    return torch.from_numpy(photo().transpose(2, 0, 1).copy())


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
    ours = images.RandomAffine(40, (0.1, 0.2), (0.5, 1.5), (-20, 10, -5, 15), interpolation, 30)(photo())
    theirs = functional.affine(
        planes(),
        angle=-40 + 80 * number,
        translate=[round(12 * (2 * number - 1)), round(18 * (2 * number - 1))],
        scale=0.5 + number,
        shear=[-20 + 30 * number, -5 + 20 * number],
        interpolation=mode_of(interpolation),
        fill=[30, 30, 30],
    )
    assert differing(ours, theirs.numpy().transpose(1, 2, 0)) < 0.02


def test_torchvision_makes_the_same_colours() -> None:
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    image = planes()
    for transform, expected in (
        (images.GaussianBlur((5, 9), 1.5), functional.gaussian_blur(image, [5, 9], [1.5, 1.5])),
        (images.GaussianBlur(23, 0.3), functional.gaussian_blur(image, [23, 23], [0.3, 0.3])),
        (images.RandomSolarize(100, 1), functional.solarize(image, 100)),
        (images.RandomGrayscale(1), functional.rgb_to_grayscale(image, 3)),
        (images.ColorJitter(brightness=(1.3, 1.3)), functional.adjust_brightness(image, 1.3)),
        (images.ColorJitter(contrast=(0.6, 0.6)), functional.adjust_contrast(image, 0.6)),
        (images.ColorJitter(saturation=(1.6, 1.6)), functional.adjust_saturation(image, 1.6)),
        (images.ColorJitter(hue=(-0.3, -0.3)), functional.adjust_hue(image, -0.3)),
    ):
        assert np.abs(transform(photo()).astype(int) - expected.numpy().transpose(1, 2, 0)).max() <= 1, transform


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
