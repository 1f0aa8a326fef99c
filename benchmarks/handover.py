"""Question: are batches that are cheap to make better made without workers, and does the loader's advice say so?

Knob: how long making a batch computes, or sleeps (`--sleep`), and the number of workers.

Held still: batches of one sample; the training loop does nothing with them. All settings take turns, round by round.

How to read it: batches per second with each number of workers, the median of the rounds. `loop` is the CPU time of the
training process per batch, `worker` what all workers compute beyond the batch itself, in microseconds: the two sides of
a hand-over (`feedline.insight.worker_model.HANDOVER_S`). Below that are the verdict for each number of workers, and the
number that `num_workers="auto"` chose. The advice is safe if no number of workers that it recommends is slower than the
current one.

    python -m benchmarks.handover
    python -m benchmarks.handover --batch-us 100 300 1000 --workers 0 1 2 6 --rounds 5
    python -m benchmarks.handover --batch-us 3000 --sleep
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset

from benchmarks import flags
from feedline import DataLoader
from feedline.loader.base import session_of
from feedline.system.process import scheduled_s

MANY = 1 << 24
WARM = 50
"""Batches before anything is counted."""


@dataclass
class Batches(Dataset[int]):
    """Samples that compute for some time, whatever else the cores are at; or sleep for it."""

    seconds: float
    sleeps: bool = False

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> int:
        if self.sleeps:
            time.sleep(self.seconds)
            return index
        end_s = time.thread_time() + self.seconds
        while time.thread_time() < end_s:
            pass
        return index


@dataclass
class Seen:
    """What one setting came to in a round."""

    rate: float
    loop_us: float
    worker_us: float
    verdict: str
    log: Sequence[str] = ()


# Any: a number of workers, or "auto".
def measure(dataset: Batches, workers: Any, seconds: float) -> Seen:
    """Go through a loader for some seconds, once it has come into its stride."""
    loader = DataLoader(dataset, 1, num_workers=workers)
    batches = iter(loader)
    for _ in range(WARM):
        next(batches)
    pids = session_of(loader).worker_pids
    before_s, loop_s = sum(scheduled_s(pid)[0] for pid in pids), time.process_time()
    begun_s, count = time.perf_counter(), 0
    while (took_s := time.perf_counter() - begun_s) < seconds:
        next(batches)
        count += 1
    worker_s, loop_s = sum(scheduled_s(pid)[0] for pid in pids) - before_s, time.process_time() - loop_s
    beyond_s = worker_s - (0 if dataset.sleeps or not pids else dataset.seconds * count)
    log = () if loader.tuning is None else tuple(loader.tuning.log)
    seen = Seen(count / took_s, loop_s / count * 1e6, beyond_s / count * 1e6, loader.stats().verdict, log)
    loader.close()
    return seen


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, seconds=1.0, rounds=3, workers=[0, 1, 2, 6], batch_us=[300])
    parser.add_argument("--sleep", action="store_true", help="batches sleep instead of computing")
    arguments = parser.parse_args(argv)
    for batch_us in arguments.batch_us:
        dataset, seen = Batches(batch_us / 1e6, arguments.sleep), dict[Any, list[Seen]]()
        for _ in range(arguments.rounds):
            for workers in (*arguments.workers, "auto"):
                seen.setdefault(workers, []).append(measure(dataset, workers, arguments.seconds))
        print(f"batches of {batch_us} us\n{'workers':>8}{'batches/s':>12}{'loop us':>10}{'worker us':>11}")
        for workers, rounds in seen.items():
            figures = (statistics.median(getattr(one, name) for one in rounds) for name in FIGURES)
            print("{:>8}{:12,.0f}{:10.0f}{:11.0f}".format(workers, *figures))
        for workers, rounds in seen.items():
            print(f"{workers}: {rounds[-1].verdict}")
            print("".join(f"    {line}\n" for line in rounds[-1].log), end="", flush=True)
    return 0


FIGURES = ("rate", "loop_us", "worker_us")

if __name__ == "__main__":
    sys.exit(main())
