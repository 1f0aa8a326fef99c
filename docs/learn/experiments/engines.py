"""Do threads or processes make samples faster, and for which kind of work?

Three datasets make the same number of samples: one waits (a disk, a network), one computes in Python (and holds the
interpreter's lock), one computes in a C library that gives the lock back while it works (zlib). Each goes through
feedline's loader without workers, with two threads and with two processes, in turns. The workers have started when
the clock starts.

Read each row from left to right: 2.0x means that two workers make twice as many samples a second as the training loop
makes by itself. The figures are medians of five rounds.

    python docs/learn/experiments/engines.py
"""

# ruff: noqa: D101, D103, T201 (a script that prints)

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable

from feedline import DataLoader

NOISE = bytes(range(256)) * 800
ENGINES = {"inline": 0, "thread": 2, "process": 2}


def wait() -> None:
    time.sleep(0.004)


def python() -> None:
    sum(number * number for number in range(40_000))


def library() -> None:
    zlib.compress(NOISE, 6)


class Work:
    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        self.work()
        return index


def seconds(work: Callable[[], None], engine: str) -> float:
    batches = iter(DataLoader(Work(work), 10, num_workers=ENGINES[engine], engine=engine))
    for _ in range(5):
        next(batches)
    start = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - start


if __name__ == "__main__":
    print(f"{'work':10}{'2 threads':>12}{'2 processes':>14}")
    for work in (wait, python, library):
        rounds = [{engine: seconds(work, engine) for engine in ENGINES} for _ in range(5)]
        thread, process = (
            statistics.median(one["inline"] / one[engine] for one in rounds) for engine in ("thread", "process")
        )
        print(f"{work.__name__:10}{thread:11.1f}x{process:13.1f}x")
