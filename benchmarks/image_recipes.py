"""Training recipes for JPEG files: `feedline.images`, and torchvision's transforms (v2) as its references write them.

The torchvision datasets are in their own module because workers started by spawn or forkserver import them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from feedline import images
from feedline.datasets import FileDataset
from feedline.datasets.derived.split import Subset
from feedline.errors import BadOption
from feedline.tools.measure import jpegs

RECIPES = ("randaugment", "dino")
SMALL, SMALL_COUNT = 96, 6
"""Side and number of the small views of the recipe "dino", beside two of `jpegs.CROP`."""


# Any: a tensor, or one for each view.
class RecipeFiles(Dataset[Any]):
    """JPEG files with Pillow and torchvision's transforms, read again if `length` exceeds their number."""

    def __init__(self, paths: list[Path], recipe: str, length: int) -> None:
        self.paths = [str(path) for path in paths]
        self.recipe = recipe
        self.length = length

    def __len__(self) -> int:
        return self.length

    # Any: torchvision's transforms.
    @cached_property
    def _transforms(self) -> list[Any]:
        torch.set_num_threads(1)  # the workers are the parallelism
        return _THEIRS[self.recipe]()

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(self.paths[index % len(self.paths)]) as file:
            image = file.convert("RGB")
        made = [transform(image) for transform in self._transforms]
        return made[0] if len(made) == 1 else made


def _their_randaugment() -> list[Any]:
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(jpegs.CROP, antialias=True)
    steps = [crop, v2.RandomHorizontalFlip(), v2.RandAugment(), *_their_floats(), v2.RandomErasing(0.1)]
    return [v2.Compose(steps)]


def _their_dino() -> list[Any]:
    from torchvision.transforms import v2

    def view(size: int, scale: tuple[float, float], blurred: float, solarized: float = 0) -> Any:
        return v2.Compose(
            [
                v2.RandomResizedCrop(size, scale=scale, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
                v2.RandomGrayscale(p=0.2),
                v2.RandomApply([v2.GaussianBlur(9, (0.1, 2.0))], p=blurred),
                v2.RandomSolarize(128, p=solarized),
                *_their_floats(),
            ]
        )

    return _views(view)


def _their_floats() -> list[Any]:
    from torchvision.transforms import v2

    normalize = v2.Normalize(images.IMAGENET_MEAN, images.IMAGENET_STD)
    return [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), normalize]


def _views(view: Callable[..., Any]) -> list[Any]:
    """Return the views of DINO: two large ones, the second solarized at times, and small ones."""
    large = [view(jpegs.CROP, (0.4, 1.0), 1.0), view(jpegs.CROP, (0.4, 1.0), 0.1, 0.2)]
    return large + [view(SMALL, (0.05, 0.4), 0.5)] * SMALL_COUNT


_THEIRS = {"randaugment": _their_randaugment, "dino": _their_dino}


# object: a feedline dataset.
def image_recipe(paths: list[Path], recipe: str, length: int) -> object:
    """Return a dataset that does the work of `RecipeFiles` with `feedline.images`."""
    files = FileDataset(paths, "data", transform=_OURS[recipe]())
    return Subset(files, np.arange(length) % len(files))


def _our_randaugment() -> images.Compose:
    return images.Compose(
        [
            images.RandomResizedCrop(jpegs.CROP),
            images.HorizontalFlip(),
            images.RandAugment(),
            images.Normalize(),
            images.RandomErasing(0.1),
        ]
    )


def _our_dino() -> images.Views:
    def view(size: int, scale: tuple[float, float], blurred: float, solarized: float = 0) -> images.Compose:
        return images.Compose(
            [
                images.RandomResizedCrop(size, scale=scale),
                images.HorizontalFlip(),
                images.RandomApply([images.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
                images.RandomGrayscale(p=0.2),
                images.RandomApply([images.GaussianBlur(9, (0.1, 2.0))], p=blurred),
                images.RandomSolarize(128, p=solarized),
                images.Normalize(),
            ]
        )

    return images.Views(_views(view))


_OURS: dict[str, Callable[[], Any]] = {"randaugment": _our_randaugment, "dino": _our_dino}


def check(dataset: RecipeFiles) -> None:
    """Raise BadOption if torchvision is not installed, or its build does not fit torch."""
    try:
        dataset[0]
    except (ImportError, RuntimeError) as exc:
        raise BadOption(
            f"--recipe {dataset.recipe} needs torchvision in a build that fits torch ({type(exc).__name__}: {exc})."
        ) from exc
