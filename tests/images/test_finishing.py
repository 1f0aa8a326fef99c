"""Images finished on the device equal those of the CPU for the same seed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feedline import DataLoader, images
from feedline.abc.deferred import Sources
from feedline.abc.memory import Placement
from feedline.datasets import ImageFolder
from feedline.device import nvjpeg
from feedline.errors import CorruptSource
from feedline.images import finishing
from tests.images.files import stored
from tests.images.pictures import placed

CPU = torch.device("cpu")

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def picture(number: int, size: tuple[int, int]) -> Image.Image:
    dice = np.random.default_rng(number)
    return Image.fromarray(dice.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of images that nvJPEG decodes, and of others: turned by EXIF, CMYK, grey, PNG, progressive."""
    root = tmp_path_factory.mktemp("pictures")
    (root / "0").mkdir()
    for number in range(16):
        image, ending = picture(number, (90 + 7 * number, 200 - 2 * number)), "jpg"
        options: dict[str, Any] = {}
        if number % 8 == 3:
            exif = Image.Exif()
            exif[0x0112] = 6
            options["exif"] = exif
        elif number % 8 == 4:
            image = image.convert("CMYK")
        elif number % 8 == 5:
            image = image.convert("L")
        elif number % 8 == 6:
            ending = "png"
        elif number % 8 == 7:
            options["progressive"] = True
        image.save(root / "0" / f"{number:03d}.{ending}", **({"quality": 95} | options if ending == "jpg" else {}))
    return root


PIPELINES = {
    "training": [images.RandomResizedCrop(64), images.HorizontalFlip(), images.Normalize()],
    "evaluation": [images.Resize(80), images.CenterCrop(64), images.Normalize()],
    "bytes": [images.RandomResizedCrop(64), images.HorizontalFlip()],
    "colours": [images.RandomResizedCrop(64), images.ColorJitter(0.4, 0.4, 0.4, 0.1), images.Normalize()],
    "augmented": [
        images.RandomResizedCrop(64),
        images.HorizontalFlip(),
        images.RandAugment(interpolation="bilinear"),
        images.Normalize(),
        images.RandomErasing(0.5, value="random"),
    ],
    "turned": [images.RandomResizedCrop(64), images.RandomRotation(20, "bilinear"), images.Normalize()],
    "rotated": [
        images.Resize(70),  # images of several sizes, until the crop
        images.RandomRotation(20, "bilinear"),
        images.HorizontalFlip(),
        images.CenterCrop(64),
        images.RandomErasing(0.5, value="random"),
        images.Normalize(),
    ],
}
ROUNDED = ("colours", "augmented", "turned", "rotated")
"""Pipelines with steps that may round differently, and later steps that amplify the difference."""


def loaded(folder: Path, pipeline: str, decode: str, **options: Any) -> torch.Tensor:
    dataset = ImageFolder(folder, "image", transform=images.Compose(PIPELINES[pipeline]), decode=decode)
    return torch.cat([batch.cpu() for batch in DataLoader(dataset, 8, seed=4, shuffle=True, **options)])


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("decode", [pytest.param("cpu", marks=needs_gpu), pytest.param("gpu", marks=needs_gpu)])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_device_gives_the_same_images(folder: Path, pipeline: str, decode: str, workers: int) -> None:
    expected = loaded(folder, pipeline, "cpu").float()
    found = loaded(folder, pipeline, decode, num_workers=workers, device="cuda").float()
    assert found.shape == expected.shape
    unit = 1.0 if pipeline == "bytes" else 1 / (255 * 0.225)
    wrong = (found - expected).abs() / unit
    assert wrong.mean() < 1.5  # of 255
    assert wrong.flatten(1).mean(1).max() < 4  # another flip or crop would be far off


@pytest.mark.parametrize(
    ("pipeline", "place"),
    [*zip(PIPELINES, [Placement.DECODE, Placement.DEVICE] * 4, strict=False), ("bytes", Placement.DEVICE)],
)
def test_images_are_finished_the_same_way_without_a_gpu(
    folder: Path, pipeline: str, place: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the device's arithmetic in torch on the CPU."""
    # Leave all files to the CPU.
    monkeypatch.setattr(nvjpeg, "decode", lambda files, offsets, out, places, sizes: list(range(len(sizes))))
    is_encoded = place is Placement.DECODE
    transform = images.Compose(PIPELINES[pipeline])
    dataset = ImageFolder(folder, "image", transform=transform, decode="gpu" if is_encoded else "auto")
    batches = list(placed(DataLoader, place)(dataset, 8, seed=4, shuffle=True))
    by_device = 8 if is_encoded and pipeline != "rotated" else 0  # a crop after a rotation is left to the worker
    assert sum(len(batch.encoded_rows) for batch in batches) == by_device
    assert sum(len(batch.pixel_rows) for batch in batches) == 16 - by_device
    found = torch.cat([batch.finish_on(CPU, Sources([], [])) for batch in batches])
    expected = loaded(folder, pipeline, "cpu")
    assert found.dtype == expected.dtype
    unit = 1 if pipeline == "bytes" else 1 / (255 * 0.225)
    wrong = (found.float() - expected.float()).abs() / unit
    if by_device:
        assert wrong.flatten(1).mean(1).max() < 4
    elif pipeline in ROUNDED:
        assert wrong.mean() < 0.6
        assert wrong.flatten(1).mean(1).max() < 2
    else:
        assert wrong.max() <= (0 if pipeline == "bytes" else 1e-3)


def test_a_file_that_the_gpu_rejects_is_decoded_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [stored(picture(number, (60, 40)), "JPEG") for number in range(3)]

    def refuse_one(data: object, offsets: object, out: torch.Tensor, places: object, sizes: object) -> list[int]:
        out.fill_(7)
        return [1]

    monkeypatch.setattr(nvjpeg, "decode", refuse_one)
    sizes = np.array([[60, 40]] * 3)

    def decoded() -> list[torch.Tensor]:
        data = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
        ragged = finishing.decode(data, np.cumsum([0, *map(len, files)]), sizes, CPU)
        return [ragged.image(number) for number in range(3)]

    found = decoded()
    assert [bool((image == 7).all()) for image in found] == [True, False, True]
    expected = np.array(Image.open(io.BytesIO(files[1])))
    assert (found[1].permute(1, 2, 0).numpy().astype(int) - expected).__abs__().max() < 8
    files[1] = files[1][:200] + files[1][-2:]
    with pytest.raises(CorruptSource, match="Encoded image 1 of a batch"):
        decoded()
