"""Draw the figures of docs/learn/workers.md: python docs/learn/figures/workers.py."""

from __future__ import annotations

from pathlib import Path

from svg import COLOURS, GRID, INK, Figure

IMAGES = Path(__file__).parents[2] / "assets" / "learn"


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
    straggler()
