"""Images with one channel keep all bits through all transforms that move pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from feedline import images
from feedline.errors import BadOption
from tests.images.decoders import INSTALLED, best_installed
from tests.images.files import stored
from tests.images.pictures import photo
from tests.images.targets.moves import Padded, Warped

HEIGHT, WIDTH = 90, 120


def deep(seed: int = 0) -> NDArray[np.uint16]:
    """Return smooth values of 16 bits."""
    fine = photo(WIDTH, HEIGHT, seed)[..., 0].astype(np.uint32)
    return (fine * 256 + photo(WIDTH, HEIGHT, seed + 1)[..., 0]).astype(np.uint16)


# Any: transforms.
def pipeline(*transforms: Any, mode: str = "I;16", **options: Any) -> images.Compose:
    return images.Compose([images.Decode(mode), *transforms], **options)


@pytest.fixture(params=[package for package in INSTALLED if package != "simplejpeg"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "PIL":
        monkeypatch.setattr("feedline.images.rendering.opencv", lambda: None)
        monkeypatch.setattr("feedline.images.steps.geometric.opencv", lambda: None)
    with best_installed(request.param):
        yield request.param


@pytest.mark.parametrize("format_", ["PNG", "TIFF"])
def test_all_bits_survive_moves_of_whole_pixels(library: str, format_: str) -> None:
    moves = [
        images.CenterCrop(60),
        images.HorizontalFlip(1.0),
        images.VerticalFlip(1.0),
        Padded(1, 2, 3, 4, "constant"),
    ]
    found = pipeline(*moves)(stored(deep(), format_))
    expected = np.pad(deep()[15:75, 30:90][::-1, ::-1], ((2, 4), (1, 3)))
    assert found.dtype == np.uint16
    assert np.array_equal(found[..., 0], expected)


def test_resized_values_are_finer_than_8_bits(library: str) -> None:
    data = stored(deep(), "PNG")
    found = pipeline(images.Resize((60, 80)))(data)[..., 0].astype(float)
    image = Image.fromarray(deep().astype(np.float32)).resize((80, 60), Image.Resampling.BILINEAR)
    assert found.shape == (60, 80)
    assert np.abs(found - np.asarray(image)).mean() < (400 if library == "cv2" else 2)
    larger = pipeline(images.Resize((180, 240)))(data)[..., 0]
    assert len(np.unique(larger)) > 5_000


def test_values_are_normalised_by_their_whole_range(library: str) -> None:
    normalize = images.Normalize(mean=(0.25,), std=(0.5,))
    found = pipeline(images.CenterCrop(60), normalize)(stored(deep(), "PNG"))
    expected = (deep()[15:75, 30:90] / 65_535 - 0.25) / 0.5
    assert found.shape == (1, 60, 60)
    assert found.dtype == np.float32
    assert np.abs(found[0] - expected).max() < 1e-6
    last = images.Normalize(mean=(0.25,), std=(0.5,), channels_first=False, dtype="float16")
    assert pipeline(last)(deep()).dtype == np.float16
    assert pipeline(last)(deep()).shape == (HEIGHT, WIDTH, 1)
    bfloat16 = images.Normalize(mean=(0.25,), std=(0.5,), dtype="bfloat16")
    assert pipeline(bfloat16)(deep()).dtype is torch.bfloat16


def test_8_bits_of_grey() -> None:
    pixels = photo(WIDTH, HEIGHT)
    for format_ in ("PNG", "JPEG"):
        data = stored(pixels, format_)
        found = pipeline(images.Resize((45, 60)), images.Normalize(mean=(0.5,), std=(0.5,)), mode="L")(data)
        assert found.shape == (1, 45, 60)
        colors = images.Compose([images.Resize((45, 60))])(data) @ (0.299, 0.587, 0.114)
        assert np.abs(found[0] - (colors / 127.5 - 1)).max() < 0.1
        assert np.abs(found[0] - (colors / 127.5 - 1)).mean() < 0.01
    assert pipeline(images.ToChannelsFirst(), mode="L")(pixels[..., :1]).shape == (1, HEIGHT, WIDTH)
    assert pipeline(mode="L")(pixels[..., 0]).shape == (HEIGHT, WIDTH, 1)
    assert pipeline(mode="L")(Image.fromarray(pixels)).shape == (HEIGHT, WIDTH, 1)


def test_arrays_and_pillow_images(library: str) -> None:
    for image in (deep(), deep()[..., None], Image.fromarray(deep())):
        assert np.array_equal(pipeline()(image)[..., 0], deep())
    assert (pipeline()(np.full((4, 4), 255, np.uint8)) == 65_535).all()


def test_masks_move_with_grey(library: str) -> None:
    targets = {"mask": images.Mask()}
    moves = [images.HorizontalFlip(1.0), Warped(30, 1, 0), images.CenterCrop(60)]
    found = pipeline(*moves, targets=targets).on("image")({"image": deep(), "mask": deep()})
    assert (found["mask"] != found["image"][..., 0]).mean() < 0.02  # except for rounding exactly between two pixels


def test_bad_pipelines_of_one_channel_are_rejected() -> None:
    normalize = images.Normalize((0.5,), (0.5,))
    for act, message in (
        (lambda: pipeline(images.ColorJitter(0.4))(deep()), "ColorJitter"),
        (lambda: pipeline(images.Normalize()), "3 channel.* 1"),
        (lambda: images.Compose([normalize]), "1 channel.* 3"),
        (lambda: images.Compose([images.Resize(8), images.Decode("L")]), "Decode"),
        (lambda: pipeline(normalize, images.RandomErasing(1.0))(deep()), "RandomErasing"),
        (lambda: pipeline(decode="gpu"), "mode"),
        (lambda: images.Compose([images.Resize(8)])(deep()), r'Put Decode\("I;16"\) first'),
        (lambda: pipeline(mode="L")(photo()), "mode|values"),
    ):
        with pytest.raises(BadOption, match=message):
            act()


def test_the_fill_of_16_bit_images_ranges_from_black_to_white(library: str) -> None:
    white = np.full((8, 8), 65535, np.uint16)
    assert (pipeline(images.Pad(2, fill=255))(white) == 65535).all()
    rotated = pipeline(images.RandomRotation((30, 30), "bilinear", fill=255))(white)
    assert (rotated == 65535).all()
    assert pipeline(images.Pad(2, fill=1))(white)[0, 0] == 257
