from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from feedline.tools.cli.demo_training import build_network


@pytest.fixture(scope="session", autouse=True)
def first_training_step() -> None:
    """Run one training step, so that torch's convolution library opens the file that it keeps open for profilers.

    Otherwise the first test that trains would seem to leave that file open.
    """
    build_network()(torch.zeros(2, 3, 224, 224)).sum().backward()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twelve pictures in two folders, in two formats and different sizes."""
    root = tmp_path / "pictures"
    for number in range(12):
        folder = root / ("cat" if number % 2 else "dög")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30 + number, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.{'png' if number % 3 else 'jpg'}")
    (root / "cat" / "notes.txt").write_text("no picture either")
    return root
