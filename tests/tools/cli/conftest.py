from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


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
