from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feedline import images
from feedline.abc.memory import Placement, on_this_thread
from feedline.errors import BadOption, CorruptSource
from feedline.images.compose import image_transform
from feedline.images.deferred import DeferredImage
from feedline.randomness.scope import Scope, enter
from feedline.types import Draw
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
    scope = Scope()
    scope.begin(Draw(key))
    before, on_this_thread.placement = enter(scope), placement
    try:
        return pipeline.deferring()(image)
    finally:
        enter(before)
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


def test_an_empty_pipeline_decodes() -> None:
    png = encoded(photo(), "PNG")
    assert (images.Compose([])(png) == photo()).all()
    assert (images.Decode()(png) == photo()).all()


@pytest.mark.parametrize("image", [np.zeros((3, 40, 50), np.uint8), np.zeros((4, 4, 3)), "a.jpg", 7, None])
def test_rejects_values_that_are_not_images(image: Any) -> None:
    with pytest.raises(BadOption, match=r"axis should be color|was given"):
        images.Resize(8)(image)


def test_a_damaged_file_is_an_error() -> None:
    with pytest.raises(CorruptSource):
        TRAIN(encoded(photo())[:200])


def test_a_fused_crop_and_resize_gives_the_pixels_of_two_steps() -> None:
    pixels = photo(500, 375)
    at_once = images.Compose([images.Resize(256), images.CenterCrop(224)])(pixels)
    after_another = images.CenterCrop(224)(images.Resize(256)(pixels))
    assert np.abs(at_once.astype(int) - after_another).mean() < 1.5


def test_a_second_resize_is_a_separate_step() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    result = images.Compose([images.Resize(8), images.Resize(64)])(noise)
    assert result.std() < 0.4 * noise.std()


def test_a_large_jpeg_is_decoded_small_with_the_same_result() -> None:
    data = encoded(photo(1600, 1200), quality=95)
    pipeline = images.Compose([images.Resize(150)])
    small = pipeline(data)
    whole = pipeline(images.decode_image(data))
    assert small.shape == (150, 200, 3)
    assert np.abs(small.astype(int) - whole).mean() < 2


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


def test_an_image_object_of_16_bits_gives_the_same_as_its_file() -> None:
    pixels: Any = np.arange(0, 65536, 64, dtype=np.uint16).reshape(32, 32)
    assert (images.Decode()(Image.fromarray(pixels)) == images.Decode()(encoded(pixels, "PNG"))).all()


def test_a_flip_before_a_crop_equals_the_steps_by_hand() -> None:
    pixels = photo()
    result = images.Compose([images.HorizontalFlip(1), images.CenterCrop((20, 31)), images.HorizontalFlip(1)])(pixels)
    assert (result == images.CenterCrop((20, 31))(pixels[:, ::-1].copy())[:, ::-1]).all()


def darker(pixels: Any) -> Any:
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    return pixels // 2


def test_a_function_receives_pixels_at_any_position() -> None:
    pixels = photo()
    pipeline = images.Compose([darker, images.CenterCrop(40), darker, images.ToChannelsFirst()])
    assert (pipeline(encoded(pixels, "PNG")) == (pixels // 4)[25:65, 40:80].transpose(2, 0, 1)).all()
    assert (images.Compose([images.CenterCrop(40), darker])(pixels) == (pixels // 2)[25:65, 40:80]).all()


class FromTorchvision:
    def __call__(self, image: Any) -> Any:
        assert isinstance(image, torch.Tensor)
        return image // 2


class FromAlbumentations:
    def __call__(self, *, image: Any) -> dict[str, Any]:
        return {"image": darker(image)}


@pytest.mark.parametrize("foreign", [FromTorchvision, FromAlbumentations])
def test_transforms_of_other_libraries_receive_what_they_expect(foreign: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "__module__", foreign.__name__.removeprefix("From").lower() + ".v2")
    pixels = photo()
    pipeline = images.Compose([images.CenterCrop(40), foreign(), images.HorizontalFlip(1)])
    assert (pipeline(pixels) == (pixels // 2)[25:65, 40:80][:, ::-1]).all()


@pytest.mark.slow
def test_torchvision_itself_works_in_a_pipeline() -> None:
    transforms = pytest.importorskip("torchvision.transforms.v2")
    result = images.Compose([images.CenterCrop(40), transforms.RandomVerticalFlip(1.0), images.Normalize()])(photo())
    assert np.allclose(result, images.Normalize()(photo()[25:65, 40:80][::-1].copy()))


def test_bad_pipelines_are_rejected_at_construction() -> None:
    with pytest.raises(BadOption, match=r"CenterCrop comes after Normalize.*Put it before"):
        images.Compose([images.Normalize(), images.CenterCrop(8)])
    with pytest.raises(BadOption, match="fused into one step"):
        images.Compose([images.Resize(8), darker], decode="gpu")
    with pytest.raises(BadOption, match="fused into one step"):
        images.Compose([images.Resize(8), images.Resize(8)]).decoding("gpu")
    with pytest.raises(BadOption, match="decode='tpu'"):
        images.Compose([], decode="tpu")
    with pytest.raises(BadOption, match="'x' is not a transform"):
        images.Compose(["x"])


def test_a_flip_after_normalising_works() -> None:
    after = images.Compose([images.Normalize(), images.HorizontalFlip(1)])(photo())
    assert (after == images.Normalize()(photo())[:, :, ::-1]).all()


@pytest.mark.parametrize("key", range(6))
@pytest.mark.parametrize("place", [Placement.COLLATE, Placement.DEVICE, Placement.DECODE])
def test_random_draws_do_not_depend_on_where_an_image_is_finished(place: Placement, key: int) -> None:
    plain = images.Compose(TRAIN.transforms[:-1])
    jpeg = encoded(photo())
    for pipeline in (TRAIN, plain):
        for image in (jpeg, encoded(photo(), "PNG"), photo()):
            whole = in_place(Placement.DATASET, pipeline, image, key)
            deferred = in_place(place, pipeline, image, key)
            other = in_place(Placement.COLLATE, pipeline, image, key)
            assert isinstance(deferred, DeferredImage)
            assert whole.shape == ((3, 32, 32) if pipeline is TRAIN else (32, 32, 3))
            assert deferred.finish == other.finish
            assert deferred.flip == other.flip
            assert deferred.steps == other.steps
            assert (deferred.data is not None) == (place is Placement.DECODE and image is jpeg)
            assert (deferred.pixels is None) == (deferred.data is not None) == (deferred.box is not None)


def test_an_image_that_the_device_cannot_decode_is_sent_as_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = in_place(Placement.DECODE, TRAIN, encoded(photo(), exif=exif))
    gray = in_place(Placement.DECODE, TRAIN, encoded(photo()[:, :, 0].copy()))
    assert turned.data is None
    assert turned.pixels.shape == (32, 32, 3)
    assert gray.data is not None


def test_images_are_decoded_in_the_worker_with_decode_cpu() -> None:
    on_this_thread.placement = Placement.DECODE
    try:
        image = TRAIN.decoding("cpu").deferring()(encoded(photo()))
    finally:
        on_this_thread.placement = Placement.DATASET
    assert image.pixels is not None


def test_decode_gpu_needs_a_device_in_a_loader() -> None:
    data = encoded(photo())
    on_gpu = TRAIN.decoding("gpu").deferring()
    assert on_gpu(data).shape == (3, 32, 32)  # without a loader there is no device to require
    scope = Scope()
    before = enter(scope)
    try:
        with pytest.raises(BadOption, match='decode="gpu" needs a device'):
            on_gpu(data)
    finally:
        enter(before)


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


class ReturnsShape:
    """A transform that returns the shape of its argument."""

    def __call__(self, image: Any) -> Any:
        assert isinstance(image, torch.Tensor)
        return tuple(image.shape)


@pytest.mark.parametrize(
    "finish", [images.Normalize(), images.ToChannelsFirst(), images.Normalize(channels_first=False)]
)
def test_torchvision_always_receives_channels_first(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReturnsShape, "__module__", "torchvision.transforms.v2")
    assert images.Compose([images.Resize((20, 30)), finish, ReturnsShape()])(photo()) == (3, 20, 30)


def test_albumentations_cannot_follow_a_change_of_the_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReturnsShape, "__module__", "albumentations")
    with pytest.raises(BadOption, match="Put it before these"):
        images.Compose([images.Resize((20, 30)), images.ToChannelsFirst(), ReturnsShape()])


def test_a_pipeline_inside_another_does_not_lose_its_field() -> None:
    inner = images.Compose([images.Resize((20, 30))])
    with pytest.raises(BadOption, match=r"call its \.on\(\)"):
        images.Compose([inner.on("left"), images.Normalize()])
    assert images.Compose([inner, images.Normalize()])(photo()).shape == (3, 20, 30)
