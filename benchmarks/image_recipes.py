"""Training recipes for JPEG files: `feedline.images`, and torchvision's transforms (v2) as its references write them.

The torchvision datasets are in their own module because workers started by spawn or forkserver import them by name.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from feedline import images
from feedline.datasets import FileDataset
from feedline.datasets.split import Subset
from feedline.errors import BadOption
from feedline.tools.bench import harness, jpegs, rows

RECIPES = ("randaugment",)
DECODERS = ("pillow", "decode_jpeg")
"""How torchvision's references read images: as Pillow images, or as tensors with `torchvision.io.decode_jpeg`."""


class RecipeFiles(Dataset[torch.Tensor]):
    """JPEG files with torchvision's transforms. `length` may exceed the number of files: they are then read again."""

    def __init__(self, paths: list[Path], decoder: str, length: int) -> None:
        self.paths = [str(path) for path in paths]
        self.decoder = decoder
        self.length = length

    def __len__(self) -> int:
        return self.length

    # Any: torchvision's transforms.
    @cached_property
    def _transform(self) -> Any:
        from torchvision.transforms import v2

        torch.set_num_threads(1)  # the workers are the parallelism
        to_tensor = [v2.PILToTensor()] if self.decoder == "pillow" else []
        return v2.Compose(
            [
                v2.RandomResizedCrop(jpegs.CROP, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.RandAugment(),
                *to_tensor,
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(images.IMAGENET_MEAN, images.IMAGENET_STD),
                v2.RandomErasing(0.1),
            ]
        )

    def __getitem__(self, index: int) -> torch.Tensor:
        made: torch.Tensor = self._transform(_READ[self.decoder](self.paths[index % len(self.paths)]))
        return made


def _with_pillow(path: str) -> object:
    from PIL import Image

    with Image.open(path) as image:
        return image.convert("RGB")


def _with_decode_jpeg(path: str) -> object:
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg(torch.from_numpy(np.fromfile(path, np.uint8)), ImageReadMode.RGB)


_READ = {"pillow": _with_pillow, "decode_jpeg": _with_decode_jpeg}


# object: a feedline dataset.
def image_recipe(paths: list[Path], length: int) -> object:
    """Return a dataset that does the work of `RecipeFiles` with `feedline.images`."""
    pipeline = images.Compose(
        [
            images.RandomResizedCrop(jpegs.CROP),
            images.HorizontalFlip(),
            images.RandAugment(),
            images.Normalize(),
            images.RandomErasing(0.1),
        ]
    )
    files = FileDataset(paths, "data", transform=pipeline)
    return Subset(files, np.arange(length) % len(files))


def entries(
    paths: list[Path], length: int, arguments: argparse.Namespace, decoders: Sequence[str]
) -> Iterator[harness.Entry]:
    """Yield `feedline.images` behind feedline's loader beside torch's loader with torchvision's transforms.

    Raises:
        BadOption: torchvision is not installed, or its build cannot decode.
    """
    ours = image_recipe(paths, length)
    for decoder in decoders:
        theirs = RecipeFiles(paths, decoder, length)
        _check(theirs)
        chosen = partial(_of_side, theirs, ours)
        yield from rows.loaders(arguments, {"decoder": f"feedline : torchvision, {decoder}"}, chosen, shuffle=True)


def _of_side(theirs: RecipeFiles, ours: object, side: harness.Side) -> object:
    return theirs if side.library == harness.TORCH else ours


def _check(dataset: RecipeFiles) -> None:
    try:
        dataset[0]
    except (ImportError, RuntimeError) as exc:
        raise BadOption(
            f"--recipe randaugment --against {dataset.decoder} needs torchvision in a build that fits torch "
            f"({type(exc).__name__}: {exc})."
        ) from exc
