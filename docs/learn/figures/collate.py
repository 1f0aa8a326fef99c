"""Draw the figures of docs/learn/collate.md: python docs/learn/figures/collate.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from svg import COLOURS, GRID, Figure

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from padding_cost import draw, packed, padded_share, ways

IMAGES = Path(__file__).parents[2] / "assets" / "learn"


def batches() -> None:
    """Draw one batch of each kind: what is data, and what is padding."""
    lengths = draw()
    made = ways(lengths, 16)
    typical = sorted(made["buckets"], key=lambda batch: int(lengths[batch].sum()))[len(made["buckets"]) * 3 // 4]
    random = sorted(made["random"], key=lambda batch: padded_share(lengths, [batch]))[len(made["random"]) // 2]
    rows = packed(lengths[:400].tolist(), 512)[30:46]
    figure = Figure("One batch of each kind", height=340)
    scale = 200 / 512
    for number, (name, parts) in enumerate(
        (
            ("random, 16 texts", [[int(length)] for length in lengths[random]]),
            ("from a bucket, 16 texts", [[int(length)] for length in lengths[typical]]),
            ("packed, 16 rows of 512", [[int(lengths[index]) for index in row] for row in rows]),
        )
    ):
        left, width = 24 + 232 * number, 512 if number == 2 else max(sum(part) for part in parts)
        real = sum(sum(part) for part in parts) / (len(parts) * width)
        figure.text(left, 28, name, bold=True)
        figure.text(left, 326, f"{1 - real:.0%} padding", colour=COLOURS[3] if real < 0.5 else COLOURS[2], bold=True)
        for row, part in enumerate(parts):
            y, x = 42 + 16.5 * row, float(left)
            figure.rect(left, y, width * scale, 12, GRID)
            for piece, length in enumerate(part):
                figure.rect(
                    x,
                    y,
                    max(2.0, length * scale - 1),
                    12,
                    COLOURS[(0, 1, 2, 4)[piece % 4]] if number == 2 else COLOURS[0],
                )
                x += length * scale
    figure.save(IMAGES / "collate-batches.svg")


if __name__ == "__main__":
    np.random.seed(0)
    batches()
