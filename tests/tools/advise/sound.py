"""Datasets of several kinds without problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import feedline
from tests.tools.advise.fixes import case
from tests.tools.advise.slow_datasets import Healthy


@case()
def tensors() -> Any:
    return TensorDataset(torch.rand(2000, 32), torch.arange(2000))


@case()
def subset() -> Any:
    return Subset(tensors(), range(0, 2000, 2))


@case()
def concatenated() -> Any:
    return ConcatDataset([tensors(), tensors()])


@case()
class Texts(Healthy):
    def __getitem__(self, index: int) -> Any:
        return f"This is sentence {index} of a text", index % 3


@case()
class Tokens(Healthy):
    """Samples of nearly the same length, so that padding costs little."""

    def __getitem__(self, index: int) -> Any:
        return {"tokens": list(range(60 + index % 4))}


def _images() -> Path:
    """Write JPEG files that are hardly larger than the samples made from them."""
    from PIL import Image

    folder = Path.cwd() / "images" / "class"
    folder.mkdir(parents=True)
    dice = np.random.default_rng(0)
    for number in range(40):
        pixels = dice.integers(0, 255, (32, 32, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((160, 160)).save(folder / f"{number}.jpg")
    return folder.parent


@case(needs="PIL")
class Images(Healthy):
    def __init__(self) -> None:
        self.paths = sorted(_images().rglob("*.jpg"))

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(self.paths[index % 40]) as image:
            return np.asarray(image.resize((128, 128))), index % 10


# Decoding small images as torchvision does, or Arrow rows, holds the lock for a share close to the threshold.
@case(needs="PIL", also=("serialised",))
def image_folder() -> Any:
    return feedline.datasets.ImageFolder(_images())


@case()
def mapped() -> Any:
    np.save("rows.npy", np.random.default_rng(0).random((1000, 64), np.float32))
    return feedline.datasets.ArrayDataset("rows.npy")


@case(needs="h5py")
def hdf5() -> Any:
    import h5py

    with h5py.File("rows.h5", "w") as file:
        file["rows"] = np.random.default_rng(0).random((1000, 64))
    return feedline.datasets.HDF5Dataset("rows.h5")


@case(needs="datasets", also=("serialised",))
def hugging_face() -> Any:
    import datasets

    rows = {"x": np.random.default_rng(0).random((1000, 16)).tolist(), "label": list(range(1000))}
    return datasets.Dataset.from_dict(rows).with_format("torch")
