"""Draw how well three ways of reading shuffle: the place of a sample in the store against its place in the epoch.

PYTHONPATH=src python docs/learn/figures/production.py
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from svg import COLOURS, GRID, Figure

import feedline
from feedline.datasets import TarDataset

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "learn"
SHARDS, EACH = 10, 60


def write(folder: Path) -> None:
    """Write shards of numbered samples."""
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:02d}.tar", "w") as file:
            for number in range(shard * EACH, (shard + 1) * EACH):
                text = str(number).encode()
                member = tarfile.TarInfo(f"{number:05d}.cls")
                member.size = len(text)
                file.addfile(member, io.BytesIO(text))


def order(dataset: Any, **options: Any) -> list[int]:
    """Return the samples in the order in which a loader delivers them."""
    return [int(number) for batch in feedline.Loader(dataset, 20, seed=1, **options) for number in batch]


def main() -> None:
    """Read the shards in three ways and draw."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        table = TarDataset(str(folder / "*.tar"), "cls", cache=str(folder / "index"))
        ways = {
            "stream, buffer=1": order(table.stream(shuffle=True, buffer=1, seed=1)),
            "stream, buffer=200": order(table.stream(shuffle=True, buffer=200, seed=1)),
            "by index, shuffle=True": order(table, shuffle=True),
        }
    figure = Figure("Place in the store against place in the epoch", height=330)
    figure.text(
        24,
        30,
        f"{SHARDS} shards of {EACH} samples: place in the store (upwards) by place in the epoch (to the right)",
        bold=True,
    )
    side = 206
    for panel, (title, samples) in enumerate(ways.items()):
        left, top = 24 + panel * (side + 27), 76
        figure.text(left, top - 12, title)
        figure.rect(left, top, side, side, GRID, opacity=0.4)
        count = SHARDS * EACH
        for place, number in enumerate(samples):
            figure.dot(left + place / count * side, top + (1 - number / count) * side, COLOURS[panel], radius=1.6)
        # How far neighbours in the epoch were apart in the store: a third of all if the shuffle is perfect.
        apart = float(np.abs(np.diff(samples)).mean() / count)
        figure.text(left, top + side + 24, f"distance of neighbours: {apart:.2f}", size=12)
        sys.stdout.write(f"{title}: {apart:.3f}, {len(set(samples))} samples\n")
    figure.save(ASSETS / "production-shuffle.svg")


if __name__ == "__main__":
    main()
