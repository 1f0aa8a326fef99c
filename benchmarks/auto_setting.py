"""Question: how close does `num_workers="auto"` come to the best setting that trying all of them finds?

Knob: the dataset, and the work of the training loop on a batch (`--step-ms`).

Held still: batches of 16, in order, workers kept from epoch to epoch. Every fixed setting (inline; processes and
threads, 1 to `--most` workers in powers of two) is measured for some seconds, after a warm-up, in turns with "auto",
which is measured when it has settled, or after `--settle` seconds.

How to read it: `of best` is the median rate of "auto" as a share of the best median of all fixed settings. Choosing the
best of many afterwards favours the fixed settings: of two equal ones, the luckier counts.

    python -m benchmarks.auto_setting
    python -m benchmarks.auto_setting --dataset sleep stragglers --most 32
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from benchmarks import flags, workloads
from feedline import DataLoader
from feedline.tools.measure.jpegs import JpegFiles

BATCH = 16
MANY = 1 << 20

# Any: the arguments of a loader.
Setting = dict[str, Any]


class Loops(Dataset[int]):
    """Samples that compute in Python for about 0.3 ms, and hold the GIL."""

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> int:
        total = 0
        for number in range(6000):
            total += number ^ index
        return total


# Any: samples of whatever kind.
DATASETS: dict[str, Callable[[Any], Dataset[Any]]] = {
    "tiny": lambda _: TensorDataset(torch.rand(1 << 16, 16), torch.arange(1 << 16)),
    "sleep": lambda _: workloads.Stragglers(MANY, usual_s=0.002, slow_s=0.002, slow_share=0.0),
    "python": lambda _: Loops(),
    "jpeg": lambda arguments: JpegFiles(workloads.jpeg_files(64, arguments.data), "pillow", MANY),
    "stragglers": lambda _: workloads.Stragglers(MANY, usual_s=0.001, slow_s=0.1, slow_share=0.01),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, seconds=1.0, rounds=3, most=8)
    flags.choose(parser, "--dataset", tuple(DATASETS))
    flags.add_data(parser)
    parser.add_argument("--step-ms", type=float, default=0.0, help="work of the training loop on a batch (0)")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds that auto has at most to settle (10)")
    arguments = parser.parse_args(argv)
    print(f"{'dataset':12}{'best setting':>16}{'batches/s':>12}{'auto':>16}{'batches/s':>12}{'of best':>10}")
    worst = 1.0
    for name in arguments.dataset:
        rates, chosen, log = compare(DATASETS[name](arguments), arguments)
        best = max((label for label in rates if label != "auto"), key=rates.__getitem__)
        share = rates["auto"] / rates[best]
        worst = min(worst, share)
        print(f"{name:12}{best:>16}{rates[best]:12.1f}{chosen:>16}{rates['auto']:12.1f}{share * 100:9.0f} %")
        print("".join(f"    {line}\n" for line in log), end="", flush=True)
    print(f"worst: {worst * 100:.0f} %")
    return 0


def compare(dataset: Dataset[Any], arguments: Any) -> tuple[dict[str, float], str, list[str]]:
    """Return the median rate of every setting, and what auto has chosen, and why."""
    rates: dict[str, list[float]] = {}
    chosen, log = "", []
    for _ in range(arguments.rounds):
        for label, setting in settings(arguments.most):
            loader = DataLoader(dataset, BATCH, **setting)
            rates.setdefault(label, []).append(rate(loader, arguments))
            if loader.tuning is not None:
                stats = loader.stats()
                chosen, log = f"{stats['engine']} {stats['workers']}", loader.tuning.log
            loader.close()
    return {label: statistics.median(measured) for label, measured in rates.items()}, chosen, log


def settings(most: int) -> Iterator[tuple[str, Setting]]:
    """Yield every setting that is tried."""
    yield "inline 0", {}
    for engine in ("process", "thread"):
        count = 1
        while count <= most:
            yield f"{engine} {count}", {"num_workers": count, "engine": engine, "persistent_workers": True}
            count *= 2
    yield "auto", {"num_workers": "auto", "persistent_workers": True}


def rate(loader: DataLoader[Any], arguments: Any) -> float:
    """Return batches per second, when the loader has come into its stride."""
    batches = forever(loader)
    begun_s, count = time.perf_counter(), 0
    settle_s = arguments.seconds / 2 if loader.tuning is None else arguments.settle
    while time.perf_counter() - begun_s < settle_s and not is_settled(loader, count):
        work(next(batches), arguments.step_ms)
        count += 1
    begun_s, count = time.perf_counter(), 0
    while time.perf_counter() - begun_s < arguments.seconds:
        work(next(batches), arguments.step_ms)
        count += 1
    return count / (time.perf_counter() - begun_s)


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
