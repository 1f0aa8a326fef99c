"""Draw the figures of "Why a loader". The numbers are those of experiments/naive_loop.py on an H200 with 16 cores."""

import math
from pathlib import Path

from svg import COLOURS, Axes, Figure

IMAGES = Path(__file__).resolve().parents[2] / "assets" / "learn"
BLUE, AMBER, GREEN = COLOURS[0], COLOURS[1], COLOURS[2]
GREY = COLOURS[5]
LOAD, COPY, TRAIN = 1302.6, 22.3, 54.1
MEASURED = [(1, 1364.5), (2, 725.8), (4, 366.4), (8, 178.0), (12, 131.2), (16, 90.9)]


def parts() -> None:
    """Draw the three parts of a step to scale."""
    figure = Figure("The three parts of a training step, drawn to scale", height=190)
    figure.text(24, 32, "One step of the naive loop, to scale (ResNet-50, batch of 256, H200)", bold=True)
    scale, x = 672 / (LOAD + COPY + TRAIN), 24.0
    for name, value, colour in (("load", LOAD, BLUE), ("copy", COPY, AMBER), ("train", TRAIN, GREEN)):
        figure.rect(x, 52, value * scale - 1, 48, colour)
        if name == "load":
            figure.text(x + 16, 82, "load: 256 JPEG files on one core, 1,303 ms", colour="#ffffff", size=15)
        x += value * scale
    figure.line([(24 + (LOAD + COPY / 2) * scale, 104), (560, 128)], AMBER, width=1)
    figure.text(556, 142, "copy, 22 ms", colour=AMBER, anchor="end", bold=True)
    figure.line([(24 + (LOAD + COPY + TRAIN / 2) * scale, 104), (682, 128)], GREEN, width=1)
    figure.text(696, 142, "train, 54 ms", colour=GREEN, anchor="end", bold=True)
    figure.text(24, 168, "The GPU works during the green part: 4 % of the time.", size=13)
    figure.save(IMAGES / "why-parts.svg")


def timelines() -> None:
    """Draw who works when in three arrangements, with load = 4, copy = 1, train = 2."""
    figure = Figure("Who works when: one loop, one worker, three workers", height=420)
    unit, left = 21.0, 112.0

    def box(row: float, start: float, length: float, colour: str, words: str) -> None:
        figure.rect(left + start * unit, row, length * unit - 2, 22, colour)
        figure.text(left + (start + length / 2) * unit - 1, row + 16, words, anchor="middle", size=12, colour="#ffffff")

    def rows(top: float, names: list[str]) -> None:
        for number, name in enumerate(names):
            figure.text(100, top + number * 27 + 16, name, anchor="end", size=12)

    figure.text(16, 28, "In sequence: 7 units per batch", bold=True)
    rows(40, ["loop", "bus", "GPU"])
    for k in range(4):
        box(40, 7 * k, 4, BLUE, str(k))
        box(67, 7 * k + 4, 1, AMBER, str(k))
        box(94, 7 * k + 5, 2, GREEN, str(k))
    figure.text(16, 148, "One worker: 4 units per batch, the time of the slowest stage", bold=True)
    rows(160, ["worker", "bus", "GPU"])
    for k in range(7):
        box(160, 4 * k, 4, BLUE, str(k))
        if k < 6:
            box(187, 4 * k + 4, 1, AMBER, str(k))
            box(214, 4 * k + 5, 2, GREEN, str(k))
    figure.text(16, 268, "Three workers, copies ahead: 2 units per batch, the GPU never waits", bold=True)
    rows(280, ["worker 0", "worker 1", "worker 2", "bus", "GPU"])
    starts = {0: 0.0, 1: 0.0, 2: 0.0}
    for k in range(12):
        start = max(starts[k % 3], (k - 3) * 2.0) if k >= 3 else 0.0
        begin = max(start, starts[k % 3])
        if begin + 4 <= 28:
            box(280 + 27 * (k % 3), begin, 4, BLUE, str(k))
        starts[k % 3] = begin + 4
        ready = begin + 4
        gpu = max(5.0 + 2 * k, ready + 1)
        if gpu + 2 <= 28:
            box(361, max(ready, gpu - 1 - (1 if k else 0)), 1, AMBER, str(k))
            box(388, gpu, 2, GREEN, str(k))
    figure.save(IMAGES / "why-timelines.svg")


def workers() -> None:
    """Draw the measured step time over the number of workers, with the model and the wall."""
    figure = Figure("Step time against the number of workers", height=380)

    def log(value: float) -> float:
        return math.log2(value)

    axes = Axes(figure, x=(0, 5), y=(log(32), log(2048)), x_label="worker processes", y_label="milliseconds per step")
    axes.y_ticks([(log(value), f"{value:,}") for value in (32, 64, 128, 256, 512, 1024, 2048)])
    axes.x_ticks([(log(value), str(value)) for value in (1, 2, 4, 8, 16, 32)])
    axes.curve([(log(n), log(max(LOAD / n, TRAIN))) for n in (1, 2, 4, 8, 16, LOAD / TRAIN, 32)], GREY, dashes="6 4")
    axes.curve([(0, log(TRAIN)), (5, log(TRAIN))], GREEN)
    axes.curve([(log(n), log(value)) for n, value in MEASURED], BLUE, dots=True)
    x, y = axes.at(0.1, log(TRAIN))
    figure.text(x, y + 18, "the GPU's own time, 54 ms: no loader gets below this line", colour=GREEN, bold=True)
    x, y = axes.at(log(4), log(366))
    figure.text(x + 12, y - 10, "measured, torch's loader", colour=BLUE, bold=True)
    x, y = axes.at(log(21), log(80))
    figure.text(x, y - 46, "model:", colour=GREY, bold=True, anchor="middle")
    figure.text(x, y - 30, "max(load / n, train)", colour=GREY, bold=True, anchor="middle")
    figure.save(IMAGES / "why-workers.svg")


if __name__ == "__main__":
    parts()
    timelines()
    workers()
