"""Draw the time line of loaders.

python docs/learn/figures/loaders_through_the_years.py
"""

from __future__ import annotations

from pathlib import Path

from svg import COLOURS, GRID, Figure

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "learn"
BLUE, AMBER, GREEN, RED, VIOLET, GREY = COLOURS

EVENTS = (
    ("Lua Torch: threads", 2013.0, 2017.0, GREY),
    ("torch DataLoader: processes, map-style", 2017.05, 2026.0, BLUE),
    ("tf.data: a graph of operations", 2017.45, 2026.0, AMBER),
    ("DALI: decode on the GPU", 2018.45, 2026.0, GREEN),
    ("IterableDataset (PyTorch 1.2)", 2019.6, 2026.0, BLUE),
    ("WebDataset: tar shards as streams", 2020.0, 2026.0, VIOLET),
    ("FFCV: own format, compiled pipeline", 2022.05, 2026.0, GREEN),
    ("torchdata DataPipes", 2022.2, 2024.95, RED),
    ("DataLoader2", 2022.5, 2024.95, RED),
    ("MosaicML Streaming: elastic, resumable", 2022.8, 2026.0, VIOLET),
    ("Grain: deterministic, for JAX", 2023.0, 2026.0, AMBER),
    ("StatefulDataLoader", 2024.6, 2026.0, BLUE),
    ("SPDL, torchdata.nodes: threads again", 2024.9, 2026.0, GREY),
    ("Python without the GIL (3.13 to 3.14)", 2024.8, 2026.0, GREY),
)


def main() -> None:
    """Draw one bar for each loader, from its first release on."""
    figure = Figure("Loaders through the years", height=66 + 27 * len(EVENTS))
    left, width, first, last = 292, 404, 2013.0, 2026.0

    def x(year: float) -> float:
        return left + (year - first) / (last - first) * width

    bottom = 40 + 27 * len(EVENTS)
    for year in range(2013, 2027, 2):
        figure.line([(x(year), 32), (x(year), bottom)], GRID, width=1)
        figure.text(x(year), bottom + 18, str(year), anchor="middle", size=12)
    for row, (name, begin, end, colour) in enumerate(EVENTS):
        y = 34 + 27 * row
        figure.text(left - 12, y + 15, name, anchor="end", size=12)
        figure.rect(x(begin), y + 2, x(end) - x(begin), 17, colour, opacity=0.8)
    figure.save(ASSETS / "loaders-through-the-years.svg")


if __name__ == "__main__":
    main()
