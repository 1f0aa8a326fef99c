"""Draw the figure of docs/learn/case-text.md: python docs/learn/figures/case_text.py."""

from __future__ import annotations

from pathlib import Path

from svg import COLOURS, Figure

IMAGES = Path(__file__).parents[2] / "assets" / "learn"

STEPS = (  # printed by docs/learn/experiments/text_batches.py: padded share in percent, rate against the first
    ("padded to 256", 79.0, 1.0),
    ("to the longest of the batch", 73.8, 1.3),
    ("buckets", 3.6, 4.8),
    ("token budget", 3.7, 5.0),
)


def steps() -> None:
    """Draw padding and rate of each step side by side."""
    figure = Figure("Padding and tokens per second at each step", height=240)
    figure.text(230, 30, "padding, %", bold=True)
    figure.text(480, 30, "tokens a second, x the first", bold=True)
    for row, (name, padding, rate) in enumerate(STEPS):
        y = 48 + 44 * row
        figure.text(218, y + 18, name, anchor="end")
        figure.rect(230, y, padding * 2, 26, COLOURS[3])
        figure.text(230 + padding * 2 + 8, y + 18, f"{padding:.1f}")
        figure.rect(480, y, rate * 28, 26, COLOURS[2])
        figure.text(480 + rate * 28 + 8, y + 18, f"{rate:.1f}x")
    figure.save(IMAGES / "case-text-steps.svg")


if __name__ == "__main__":
    steps()
