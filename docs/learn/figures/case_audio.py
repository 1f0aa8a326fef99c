"""Draw the figures of the case study about audio.

python docs/learn/figures/case_audio.py

The numbers are those that `docs/learn/experiments/case_audio.py` printed: means of two runs.
"""

from __future__ import annotations

import math
from pathlib import Path

from svg import COLOURS, GRID, Figure

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "learn"

COSTS = (
    ("read the whole file, resample it, crop", 92.0, COLOURS[3]),
    ("seek, read 2 s, resample", 5.9, COLOURS[1]),
    ("read the whole file, crop, stay at 44.1 kHz", 5.1, COLOURS[1]),
    ("seek, read 2 s, stay at 44.1 kHz", 0.37, COLOURS[0]),
    ("crop from files stored at 16 kHz", 0.18, COLOURS[2]),
    ("fixed clip from a cache in memory", 0.16, COLOURS[2]),
)

PADDING = (
    ("every batch as long as the longest clip of all", 0.782, COLOURS[3]),
    ("batches of 32 in random order", 0.662, COLOURS[1]),
    ("batches of 32 from length buckets", 0.070, COLOURS[2]),
)


def costs() -> None:
    """Draw the CPU time of one clip, on a logarithmic scale."""
    figure = Figure("CPU time for one clip of two seconds", height=310)
    figure.text(
        24,
        30,
        "CPU time for one clip of two seconds, in milliseconds (each grid line is ten times the last)",
        bold=True,
    )
    left, width, low, high = 312, 330, math.log10(0.05), math.log10(200)
    for power in (-1, 0, 1, 2):
        x = left + (power - low) / (high - low) * width
        figure.line([(x, 48), (x, 274)], GRID, width=1)
        figure.text(x, 294, f"{10**power:g}", anchor="middle", size=12)
    for row, (name, value, colour) in enumerate(COSTS):
        y = 56 + 36 * row
        length = (math.log10(value) - low) / (high - low) * width
        figure.text(left - 10, y + 17, name, anchor="end", size=12)
        figure.rect(left, y, length, 24, colour)
        figure.text(left + length + 8, y + 17, f"{value:g}", size=13, bold=True)
    figure.save(ASSETS / "case-audio-costs.svg")


def padding() -> None:
    """Draw which part of a batch is padding."""
    figure = Figure("Share of the numbers in a batch that are padding", height=200)
    figure.text(24, 30, "Share of the numbers in a batch that are padding", bold=True)
    left, width = 312, 330
    for row, (name, value, colour) in enumerate(PADDING):
        y = 52 + 44 * row
        figure.text(left - 10, y + 19, name, anchor="end", size=12)
        figure.rect(left, y, width, 28, GRID)
        figure.rect(left, y, width * value, 28, colour)
        figure.text(left + width + 8, y + 19, f"{100 * value:.0f} %", bold=True)
    figure.save(ASSETS / "case-audio-padding.svg")


if __name__ == "__main__":
    costs()
    padding()
