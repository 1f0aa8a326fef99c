"""Draw the figures of docs/learn/workers.md: python docs/learn/figures/workers.py."""

from __future__ import annotations

from pathlib import Path

from svg import COLOURS, GRID, INK, Figure

IMAGES = Path(__file__).parents[2] / "assets" / "learn"

MEMORY = (  # printed by docs/learn/experiments/copy_on_write.py, with torch's loader: size, first batch, last batch
    ("array of numbers", 80, 9, 9),
    ("array of fixed-width names", 43, 8, 9),
    ("list of floats", 32, 8, 40),
    ("list of names", 100, 9, 103),
    ("array of objects", 100, 9, 103),
)


def memory() -> None:
    """Draw what a worker has for itself after it has read every sample once."""
    figure = Figure("Private memory of a worker that has read a dataset once", height=300)
    figure.text(
        24, 28, "private memory of the worker, MB: at its first batch, and what it copied until its last", bold=True
    )
    left, scale = 220, 3.1
    for row, (name, size, first, last) in enumerate(MEMORY):
        y = 52 + 46 * row
        figure.text(left - 12, y + 18, name, anchor="end")
        figure.rect(left, y, first * scale, 26, COLOURS[5], opacity=0.6)
        if last - first > 1:
            figure.rect(left + first * scale, y, (last - first) * scale, 26, COLOURS[3])
        figure.text(left + last * scale + 8, y + 18, f"{last} (dataset: {size} MB)")
    figure.text(left, 290, "grey: at the first batch    red: copied, page by page", size=12)
    figure.save(IMAGES / "workers-memory.svg")


def straggler() -> None:
    """Draw four workers that deliver in order, with a window of two batches each and one slow batch."""
    figure = Figure("Four workers, in order, one slow batch", height=270)
    workers, window, usual, slow = 4, 8, 1.0, 9.0
    free, delivered, tasks = [0.0] * workers, [], []
    for number in range(26):
        worker = number % workers
        begin = max(free[worker], delivered[number - window] if number >= window else 0.0)
        end = begin + (slow if number == 4 else usual)
        free[worker] = end
        delivered.append(max(end, delivered[-1] if delivered else 0.0))
        tasks.append((worker, number, begin, end))
    left, scale, last = 96, 46.0, 13.0
    for worker in range(workers):
        y = 44 + 44 * worker
        figure.text(left - 12, y + 20, f"worker {worker}", anchor="end")
        figure.rect(left, y, last * scale, 30, GRID)
    for worker, number, begin, end in tasks:
        if begin >= last - 0.5:
            continue
        x, y = left + begin * scale, 44 + 44 * worker
        figure.rect(x + 1, y, (min(end, last) - begin) * scale - 2, 30, COLOURS[3] if number == 4 else COLOURS[0])
        figure.text(
            x + (min(end, last) - begin) * scale / 2, y + 20, str(number), anchor="middle", colour="#ffffff", bold=True
        )
    stop = left + delivered[4] * scale
    figure.line([(stop, 34), (stop, 222)], INK, width=1.5, dashes="4 3")
    figure.text(stop, 28, "batch 4 is delivered", anchor="middle", size=12)
    figure.text(
        left,
        246,
        "time: each box is a batch; grey is idle. Batches 5 to 7 and 9 to 11 are ready, and wait for batch 4.",
        size=12,
    )
    figure.save(IMAGES / "workers-straggler.svg")


if __name__ == "__main__":
    memory()
    straggler()
