"""Question: how close does `num_workers="auto"` come to the best setting, and does the loader's advice lead there?

Knob: the dataset, and the work of the training loop on a batch (`--step-ms`).

Held still: batches of 16 in order (of one for `busy`, whose samples compute for `--batch-us`, whatever else the cores
are at), workers kept from epoch to epoch. Every fixed setting (inline; processes and threads, 1 to `--most` workers in
powers of two) is measured for some seconds, after a warm-up, in turns with "auto", which is measured when it has
settled, or after `--settle` seconds.

How to read it: `of best` is the median rate as a share of the best median of all fixed settings. Choosing the best of
many afterwards favours the fixed settings: of two equal ones, the luckier counts. `loop` and `worker` are microseconds
of CPU time for a batch, of the training process and of all workers: with `busy`, what workers need beyond
`--batch-us`, and the loop, is a hand-over (`feedline.insight.worker_model.HANDOVER_S`). The advice is safe if no
number of workers that it recommends is slower than the current one.

    python -m benchmarks.auto_setting
    python -m benchmarks.auto_setting --dataset sleep stragglers --most 32
    python -m benchmarks.auto_setting --dataset busy --batch-us 100
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from benchmarks import flags, workloads
from feedline import DataLoader
from feedline.loader.base import session_of
from feedline.system.process import scheduled_s
from feedline.tools.measure.jpegs import JpegFiles

BATCH = 16
MANY = 1 << 20


class Loops(Dataset[int]):
    """Samples that compute in Python for about 0.3 ms, and hold the GIL."""

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> int:
        total = 0
        for number in range(6000):
            total += number ^ index
        return total


@dataclass
class Busy(Dataset[int]):
    """Samples that compute for some time, whatever else the cores are at."""

    seconds: float

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> int:
        end_s = time.thread_time() + self.seconds
        while time.thread_time() < end_s:
            pass
        return index


# Any: samples of whatever kind, and the flags.
DATASETS: dict[str, Callable[[Any], Dataset[Any]]] = {
    "tiny": lambda _: TensorDataset(torch.rand(1 << 16, 16), torch.arange(1 << 16)),
    "sleep": lambda _: workloads.Stragglers(MANY, usual_s=0.002, slow_s=0.002, slow_share=0.0),
    "python": lambda _: Loops(),
    "jpeg": lambda arguments: JpegFiles(workloads.jpeg_files(64, arguments.data), "pillow", MANY),
    "stragglers": lambda _: workloads.Stragglers(MANY, usual_s=0.001, slow_s=0.1, slow_share=0.01),
    "busy": lambda arguments: Busy(arguments.batch_us / 1e6),
}


@dataclass
class Seen:
    """What one setting came to in a round."""

    rate: float
    loop_us: float
    worker_us: float
    verdict: str
    chosen: str
    log: Sequence[str]


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, seconds=1.0, rounds=3, most=8, batch_us=300)
    flags.choose(parser, "--dataset", tuple(DATASETS))
    flags.add_data(parser)
    parser.add_argument("--step-ms", type=float, default=0.0, help="work of the training loop on a batch (0)")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds that auto has at most to settle (10)")
    arguments = parser.parse_args(argv)
    for name in arguments.dataset:
        dataset, seen = DATASETS[name](arguments), dict[str, list[Seen]]()
        for _ in range(arguments.rounds):
            for label, setting in settings(arguments.most):
                size = 1 if name == "busy" else BATCH
                seen.setdefault(label, []).append(measure(DataLoader(dataset, size, **setting), arguments))
        show(name, seen)
    return 0


def show(name: str, seen: dict[str, list[Seen]]) -> None:
    rates = {label: statistics.median(one.rate for one in rounds) for label, rounds in seen.items()}
    best = max(rate for label, rate in rates.items() if label != "auto")
    print(f"{name:14}{'batches/s':>12}{'of best':>9}{'loop us':>9}{'worker us':>11}  verdict")
    for label, rounds in seen.items():
        loop_us, worker_us = (
            statistics.median(getattr(one, key) for one in rounds) for key in ("loop_us", "worker_us")
        )
        share = f"{rates[label] / best * 100:.0f} %"
        print(f"{label:14}{rates[label]:12.1f}{share:>9}{loop_us:9.0f}{worker_us:11.0f}  {rounds[-1].verdict}")
    print("".join(f"    {line}\n" for line in (f"auto: {seen['auto'][-1].chosen}", *seen["auto"][-1].log)), flush=True)


# Any: the arguments of a loader.
def settings(most: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every setting that is tried."""
    yield "inline 0", {}
    for engine in ("process", "thread"):
        count = 1
        while count <= most:
            yield f"{engine} {count}", {"num_workers": count, "engine": engine, "persistent_workers": True}
            count *= 2
    yield "auto", {"num_workers": "auto", "persistent_workers": True}


def measure(loader: DataLoader[Any], arguments: Any) -> Seen:
    """Go through a loader for some seconds, when it has come into its stride."""
    batches = forever(loader)
    begun_s, count = time.perf_counter(), 0
    settle_s = arguments.seconds / 2 if loader.tuning is None else arguments.settle
    while time.perf_counter() - begun_s < settle_s and not is_settled(loader, count):
        work(next(batches), arguments.step_ms)
        count += 1
    pids = session_of(loader).resources.worker_pids
    worker_s, loop_s = sum(scheduled_s(pid)[0] for pid in pids), time.process_time()
    begun_s, count = time.perf_counter(), 0
    while (took_s := time.perf_counter() - begun_s) < arguments.seconds:
        work(next(batches), arguments.step_ms)
        count += 1
    worker_s, loop_s = sum(scheduled_s(pid)[0] for pid in pids) - worker_s, time.process_time() - loop_s
    stats = loader.stats()
    chosen, log = f"{stats['engine']} {stats['workers']}", () if loader.tuning is None else tuple(loader.tuning.log)
    loader.close()
    return Seen(count / took_s, loop_s / count * 1e6, worker_s / count * 1e6, stats.verdict, chosen, log)


def is_settled(loader: DataLoader[Any], count: int) -> bool:
    """True if auto has found its number."""
    tuning = loader.tuning
    return tuning is not None and count > 0 and (tuning.count == 0 or "settled" in tuning.log[-1])


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    """Go through epochs without end."""
    while True:
        yield from loader


def work(batch: Any, step_ms: float) -> None:
    """Do what a training step does: look at the data, and take its time."""
    first = batch[0] if isinstance(batch, list) else batch
    first.sum()
    if step_ms:
        time.sleep(step_ms / 1e3)


if __name__ == "__main__":
    sys.exit(main())
