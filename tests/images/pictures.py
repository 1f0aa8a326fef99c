"""Images for the tests, and loaders that finish them in a given place."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feedline.abc.memory import Placement
from feedline.datasets.framework.source import Source
from feedline.images.decoding import decode_image
from feedline.images.finishing import DeferredImages
from feedline.images.rendering import cut, dtype_of, finish_into
from tests.images.files import stored


def photo(width: int = 120, height: int = 90, seed: int = 0) -> NDArray[np.uint8]:
    """Return smooth pixels with some detail, like those of a photograph."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(float)
    return np.clip(smooth + random.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)


def encoded(pixels: NDArray[np.uint8], format_: str = "JPEG", **options: Any) -> bytes:
    """Return the bytes of a file with these pixels."""
    return stored(pixels, format_, **options)


@functools.cache
def scene(index: int) -> dict[str, Any]:
    """Return a file, JPEG or PNG, with targets."""
    width, height = ((120, 90), (100, 80), (90, 120), (119, 90))[index % 4]
    pixels = photo(width, height, index)
    return {
        "image": encoded(pixels, "JPEG" if index % 3 else "PNG"),
        "mask": encoded((pixels[..., 0] > 120).astype(np.uint8), "PNG"),
        "points": [[20, 30, 2], [60, 50, 1]],
        "boxes": [[index, 5, index + 20, 40]],
        "number": index,
    }


class Scenes(Source):
    """Twelve samples with a file and its number, and what a pipeline names as its targets."""

    def __len__(self) -> int:
        return 12

    def _read(self, indices: Any) -> list[Any]:
        names = ("image", "number", *getattr(self.transform, "targets", ()))
        return [{name: scene(index)[name] for name in names} for index in indices.tolist()]

    def close(self) -> None:
        pass

    def _form(self) -> str:
        return "scenes"


# Any: of the type that `finish` selects.
def finished(images: DeferredImages) -> NDArray[Any]:
    """Do on the CPU, file by file, what the device does with images."""
    batch = np.empty((len(images), *images.finish.shape), dtype_of(images.finish))
    pixels = dict(zip(np.asarray(images.pixel_rows).tolist(), np.asarray(images.pixels), strict=True))
    data, offsets = np.asarray(images.data), np.asarray(images.offsets).tolist()
    files = enumerate(np.asarray(images.encoded_rows).tolist())
    size = images.finish.width, images.finish.height
    for number, row in files:
        image = decode_image(data[offsets[number] : offsets[number + 1]].tobytes())
        box = np.asarray(images.boxes)[number].tolist()
        pixels[row] = cut(image, tuple(box), *size)
    for row, out in enumerate(batch):
        steps = images.steps[row] if images.steps else ()
        erasures = images.erasures[row] if images.erasures else ()
        finish_into(out, pixels[row], images.finish, flip=bool(images.flips[row]), steps=steps, erasures=erasures)
    return batch


# Any: a class of loaders.
def placed(kind: Any, where: Placement) -> Any:
    """Return a loader class that finishes images in a given place, with or without a device."""

    class Config(kind._feedline_config):  # type: ignore[misc]  # of either loader
        placement = where

    class Placed(kind):  # type: ignore[misc]
        _feedline_config = Config

    return Placed
