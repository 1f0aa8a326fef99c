"""Draw timelines of three runs, from recordings that this script makes, and print the verdict about each.

PYTHONPATH=src python docs/learn/figures/where_the_time_goes.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from svg import COLOURS, INK, Figure

import feedline
from feedline.insight.recording import Recording

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "learn"
WINDOW_MS = 480


class Waiting:
    """Samples that take some time to arrive, as from a disk or over a network; some of them take longer."""

    def __init__(self, sample_ms: float, late_ms: float = 0, late: tuple[int, ...] = ()) -> None:
        self.sample_s, self.late_s, self.late = sample_ms / 1e3, late_ms / 1e3, late

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> np.ndarray:
        time.sleep(self.late_s if index in self.late else self.sample_s)
        return np.zeros(8, np.float32)


RUNS = (
    ("Data-bound: two workers need 60 ms for a batch, the step takes 15 ms", Waiting(15), 15),
    ("Compute-bound: two workers need 16 ms for a batch, the step takes 30 ms", Waiting(4), 30),
    (
        "A straggler: one sample in batch 12 takes 250 ms, all others 5 ms; the step takes 14 ms",
        Waiting(5, 250, (49,)),
        14,
    ),
)


def recorded(dataset: Waiting, step_ms: float) -> Recording:
    """Record one epoch of a loop that sleeps for as long as a step would take."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        loader = feedline.Loader(dataset, 4, workers=2)
        with feedline.record(loader, path):
            for _ in loader:
                time.sleep(step_ms / 1e3)
        sys.stdout.write(f"{loader.stats().verdict}\n")
        loader.close()
        return Recording.load(path)


def draw(figure: Figure, top: float, title: str, recording: Recording, start_batch: int) -> None:
    """Draw the training loop and the workers as lanes."""
    rows: dict[str, Any] = recording.rows
    begin = int(rows["asked"][start_batch]) - 10_000_000
    left, width, lane = 112, 580, 26

    def x(moment: float) -> float:
        return float(left + np.clip((moment - begin) / (WINDOW_MS * 1e6), 0, 1) * width)

    figure.text(24, top, title, bold=True)
    for number, name in enumerate(("training loop", "worker 0", "worker 1")):
        figure.text(left - 10, top + 30 + number * (lane + 4), name, anchor="end", size=12)
    count = len(rows["got"])
    for row in range(count):
        y = top + 12
        asked, got = int(rows["asked"][row]), int(rows["got"][row])
        after = int(rows["asked"][row + 1]) if row + 1 < count else got
        if x(got) - x(asked) > 1:
            figure.rect(x(asked), y, x(got) - x(asked), lane, COLOURS[3], opacity=0.75)
        if x(after) - x(got) > 1:
            figure.rect(x(got), y, x(after) - x(got), lane, COLOURS[2], opacity=0.8)
            if x(after) - x(got) > 14:
                middle = (x(got) + x(after)) / 2
                figure.text(middle, y + 18, str(row), anchor="middle", size=12, colour="#ffffff")
        y += (lane + 4) * (int(rows["worker"][row]) + 1)
        a, b = x(int(rows["began"][row])), x(int(rows["finished"][row]))
        if b - a > 1:
            figure.rect(a, y, b - a - 1, lane, COLOURS[0], opacity=0.75)
            if b - a > 14:
                figure.text((a + b) / 2, y + 18, str(row), anchor="middle", size=12, colour="#ffffff")


def main() -> None:
    """Record, print, draw."""
    figure = Figure("Timelines of three runs", height=496)
    for number, (title, dataset, step_ms) in enumerate(RUNS):
        recording = recorded(dataset, step_ms)
        draw(figure, 34 + number * 138, title, recording, 10)
    for place, (colour, words) in enumerate(
        ((COLOURS[2], "the loop trains"), (COLOURS[3], "the loop waits"), (COLOURS[0], "a worker makes a batch"))
    ):
        figure.rect(112 + 170 * place, 448, 16, 16, colour, opacity=0.8)
        figure.text(134 + 170 * place, 461, words, size=12)
    figure.text(112, 482, f"{WINDOW_MS} ms from left to right; numbers are batches", size=12, colour=INK)
    figure.save(ASSETS / "where-timelines.svg")


if __name__ == "__main__":
    main()
