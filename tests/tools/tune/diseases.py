"""Datasets of real files, each with a disease that a source of ours cures; short enough to be probed to their end."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from torch.utils.data import Dataset

COUNT = 60

# Any, throughout: samples, and modules and handles of other libraries.


class Crops(Dataset[Any]):
    """JPEG files, of which a random crop is used, as torchvision's RandomResizedCrop takes it."""

    def __init__(self) -> None:
        from PIL import Image

        data = io.BytesIO()
        pixels = np.random.default_rng(0).integers(0, 255, (30, 40, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((800, 600)).save(data, "JPEG")
        self.data = data.getvalue()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.data)).crop((100, 100, 300, 250)).resize((64, 48)))
