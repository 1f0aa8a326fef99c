from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feedline import images
from feedline.abc.memory import Placement, on_this_thread
from feedline.errors import BadOption
from feedline.images.compose import image_transform
from feedline.images.deferred import DeferredImage
from tests.drawing import with_key
from tests.images.pictures import encoded, photo

TRAIN = images.Compose(
    [
        images.RandomResizedCrop(32),
        images.HorizontalFlip(),
        images.ColorJitter(0.4, 0.4, 0.4, 0.1),
        images.Normalize(),
    ]
)


def in_place(placement: Placement, pipeline: images.Compose, image: Any, key: int = 0) -> Any:
    """Transform an image as a source in a worker does, with the random numbers of this key."""
    on_this_thread.placement = placement
    try:
        return with_key(key, lambda: pipeline.deferring()(image))
    finally:
        on_this_thread.placement = Placement.DATASET


@pytest.mark.parametrize("form", ["bytes", "memoryview", "array", "pillow", "png"])
def test_an_image_may_have_any_form(form: str) -> None:
    pixels = photo()
    png = encoded(pixels, "PNG")
    image = {
        "bytes": encoded(pixels, quality=95),
        "memoryview": memoryview(png),
        "array": pixels,
        "pillow": Image.fromarray(pixels),
        "png": png,
    }[form]
    result = images.Compose([images.Resize(45), images.CenterCrop(40)])(image)
    whole = np.asarray(Image.fromarray(pixels).resize((60, 45), Image.Resampling.BILINEAR))
    assert np.abs(result.astype(int) - whole[2:42, 10:50]).mean() < 2.5


@pytest.mark.parametrize("pixels", [photo()[:, :, 0], photo()[:, :, :1], np.dstack([photo(), photo()[:, :, 0]])])
def test_gray_and_alpha_images_become_rgb(pixels: Any) -> None:
    assert images.Compose([])(pixels).shape == (90, 120, 3)
    assert images.Compose([images.Resize(45), images.Normalize()])(pixels).shape == (3, 45, 60)


@pytest.mark.parametrize("image", [np.zeros((3, 40, 50), np.uint8), np.zeros((4, 4, 3)), "a.jpg", 7, None])
def test_rejects_values_that_are_not_images(image: Any) -> None:
    with pytest.raises(BadOption, match=r"axis should be color|was given"):
        images.Resize(8)(image)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(65, 73), (129, 97)])
def test_jpegs_decoded_small_are_not_stretched_if_their_sides_are_not_multiples_of_8(
    size: tuple[int, int], orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(photo(*size), quality=97, exif=exif)
    pipeline = images.Resize((16, 16))
    assert np.abs(pipeline(data).astype(int) - pipeline(images.decode_image(data))).mean() < 2


def test_flips_before_a_crop_and_after_normalising() -> None:
    pixels = photo()
    result = images.Compose([images.HorizontalFlip(1), images.CenterCrop((20, 31)), images.HorizontalFlip(1)])(pixels)
    assert (result == images.CenterCrop((20, 31))(pixels[:, ::-1].copy())[:, ::-1]).all()
    after = images.Compose([images.Normalize(), images.HorizontalFlip(1)])(pixels)
    assert (after == images.Normalize()(pixels)[:, :, ::-1]).all()


def darker(pixels: Any) -> Any:
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    return pixels // 2


def test_a_function_receives_pixels_at_any_position() -> None:
    pixels = photo()
    pipeline = images.Compose([darker, images.CenterCrop(40), darker, images.ToChannelsFirst()])
    assert (pipeline(encoded(pixels, "PNG")) == (pixels // 4)[25:65, 40:80].transpose(2, 0, 1)).all()
    assert (images.Compose([images.CenterCrop(40), darker])(pixels) == (pixels // 2)[25:65, 40:80]).all()


class Library:
    """Stands in for a transform of a library that is not installed; its module decides which."""

    def __call__(self, *images: Any, **named: Any) -> Any:
        if named:
            return {"image": darker(named["image"])}
        assert isinstance(images[0], torch.Tensor)
        return images[0] // 2


@pytest.mark.parametrize("library", ["torchvision.transforms.v2", "albumentations"])
def test_transforms_of_other_libraries_receive_what_they_expect(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "__module__", library)
    pixels = photo()
    pipeline = images.Compose([images.CenterCrop(40), Library(), images.HorizontalFlip(1)])
    assert (pipeline(pixels) == (pixels // 2)[25:65, 40:80][:, ::-1]).all()
    for finish in (images.Normalize(), images.ToChannelsFirst(), images.Normalize(channels_first=False)):
        if library == "albumentations" and getattr(finish, "channels_first", True):
            with pytest.raises(BadOption, match="Put it before these"):
                images.Compose([finish, Library()])
        elif library != "albumentations":
            assert images.Compose([images.Resize((20, 30)), finish, Library()])(pixels).shape == (3, 20, 30)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: images.Compose([images.Normalize(), images.CenterCrop(8)]), "CenterCrop .*Normalize"),
        (lambda: images.Compose([images.Resize(8), darker], decode="gpu"), "gpu|fused"),
        (lambda: images.Compose([images.Resize(8), images.Resize(8)]).decoding("gpu"), "gpu|fused"),
        (lambda: images.Compose([], decode="tpu"), "decode='tpu'"),
        (lambda: images.Compose(["x"]), "'x'"),
        (lambda: images.Compose([images.Compose([images.Resize(8)]).on("left"), images.Normalize()]), r"\.on\(\)"),
    ],
)
def test_bad_pipelines_are_rejected_at_construction(make: Any, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        make()


def test_an_image_that_the_device_cannot_decode_is_sent_as_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = in_place(Placement.DECODE, TRAIN, encoded(photo(), exif=exif))
    gray = in_place(Placement.DECODE, TRAIN, encoded(photo()[:, :, 0].copy()))
    assert turned.data is None
    assert turned.pixels.shape == (32, 32, 3)
    assert gray.data is not None
    by_worker = in_place(Placement.DECODE, TRAIN.decoding("cpu"), encoded(photo()))
    padded = in_place(Placement.DECODE, images.Compose([images.RandomCrop(90, 4)]), encoded(photo(90, 90)))
    assert by_worker.pixels is not None
    assert padded.pixels is not None


def test_decode_gpu_needs_a_device_in_a_loader() -> None:
    data = encoded(photo())
    on_gpu = TRAIN.decoding("gpu").deferring()
    assert on_gpu(data).shape == (3, 32, 32)  # without a loader there is no device to require
    with pytest.raises(BadOption, match='decode="gpu" needs a device'):
        with_key(0, lambda: on_gpu(data))


def test_only_sources_defer_images() -> None:
    on_this_thread.placement = Placement.COLLATE
    try:
        assert isinstance(TRAIN(photo()), np.ndarray)
        assert isinstance(images.Resize(8)(photo()), np.ndarray)
        assert isinstance(image_transform(images.Resize(8))(photo()), DeferredImage)
        assert isinstance(image_transform(images.Compose([images.Resize(8), darker]))(photo()), np.ndarray)
    finally:
        on_this_thread.placement = Placement.DATASET
    assert image_transform(darker) is darker
