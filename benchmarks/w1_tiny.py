"""Question: what does the loader itself cost when samples cost almost nothing?

Knob: the number of workers, how the dataset is written, and what feedline's loader is prepared for.
  tensors           torch's array-backed `TensorDataset`, which can be gathered a batch at a time
  map               a plain map-style class that returns `(tensor(10), int)` for one index at a time
  nothing           a map-style class that returns 0
  generator, range  a stream of integers: `__iter__` is a generator function, which might draw at any sample and of
                    which every worker has to go through all; or it returns the iterator of a range. The loader splits
                    it over workers (`shard=True`); torch's has a dataset that splits itself
  split             that dataset, in both loaders
  --with            `seed`: `seed=1`. `no-restarts`: no worker is replaced (restarts=0). `skip`: samples that fail are
                    left out. `retry`: a policy by the kind of exception, with a budget

Held still: samples of ten floats and a label, or integers; batches of 64; map-style datasets are shuffled by torch's
own sampler, `nothing` is not shuffled; the consumer touches every tensor. Both loaders get the same dataset object.

How to read it: `x torch` compares at the same number of workers, `x torch's best` with whatever number of workers suits
torch best (often none), `x own inline` with the same library without workers: below 1 means that workers make it
slower. `of plain` is the rate as a share of that of feedline's loader without `--with`, in the same round. `worker CPU`
is what all workers use for a batch. `loop` takes samples by hand and stacks them, without any loader: its
`consumer CPU` is what a worker cannot avoid.

    python -m benchmarks.w1_tiny
    python -m benchmarks.w1_tiny --dataset map --workers 0 2 --json w1.jsonl
    python -m benchmarks.w1_tiny --dataset nothing --with no-restarts skip retry --samples 1e7
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from benchmarks import flags, workloads
from benchmarks.peers import Peer
from feedline.faults import Policy, Retry
from feedline.tools.measure import harness, rows
from feedline.tools.measure.harness import Loading
from feedline.tools.measure.rows import Opened, entries
from feedline.tools.measure.workloads import TinyMap, tiny_tensors

# Any: datasets of several kinds, and arguments of a loader.
DATASETS: dict[str, Any] = {
    "tensors": tiny_tensors,
    "map": TinyMap,
    "nothing": workloads.Nothing,
    "generator": workloads.Integers,
    "range": workloads.PlainIntegers,
    "split": workloads.SplitIntegers,
}
SHARDED = ("generator", "range")
EXTRAS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "no-restarts": {"restarts": 0},
    "skip": {"on_error": "skip"},
    "retry": {"on_error": Policy({OSError: Retry(3), ValueError: "skip"}, max_failures=100)},
}
COLUMNS = (
    rows.RATE,
    rows.Column("of_plain", "of plain", digits=3, with_range=True),
    rows.Column("worker_cpu_us", "worker\nCPU us"),
    *rows.COSTS,
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], seconds=1.0, warmup=32, workers=[0, 1, 2], samples=100_000, batch_size=64
    )
    flags.choose(parser, "--dataset", tuple(DATASETS), ("tensors", "map"))
    parser.add_argument(
        "--with", nargs="+", choices=tuple(EXTRAS), default=[], help="also feedline's loader with these"
    )
    arguments = parser.parse_args(argv)
    found: list[harness.Entry] = []
    for name in arguments.dataset:
        dataset = DATASETS[name](arguments.samples)
        shuffles = {"shuffle": True, "drop_last": True} if name in ("tensors", "map") else {}
        theirs = DATASETS["split"](arguments.samples) if name in SHARDED else dataset
        ways: dict[str, Opened] = {
            "torch": partial(opened, theirs, shuffles),
            "feedline": partial(opened, dataset, shuffles),
        }
        for extra in getattr(arguments, "with"):
            ways[f"feedline {extra}"] = partial(opened, dataset, {**shuffles, **EXTRAS[extra]})
        if name == "map":
            ways["loop"] = partial(by_hand, dataset)
        found += entries(arguments, {"dataset": name}, ways, length=arguments.samples // arguments.batch_size)
    outcomes = rows.measure(found, arguments)
    for outcome in outcomes:
        for figures in outcome.rounds:
            all_us = (figures["cpu_s_per_1000"] or 0.0) * 1e3 * arguments.batch_size
            figures["worker_cpu_us"] = all_us - (figures["parent_cpu_us"] or 0.0)
        if outcome.side.library == harness.FEEDLINE:
            plain = next(o for o in outcomes if o.case == outcome.case and o.side.library == harness.FEEDLINE)
            for ours, theirs in zip(outcome.rounds, plain.rounds, strict=True):
                ours["of_plain"] = (ours["samples_per_s"] or 0.0) / (theirs["samples_per_s"] or 1.0)
    rows.publish("w1_tiny", outcomes, arguments, columns=COLUMNS)
    return 0


def opened(dataset: object, options: dict[str, Any], loading: Loading) -> harness.LoaderLike:
    if loading.engine is not None and loading.workers and isinstance(dataset, workloads.Integers):
        options = {**options, "shard": not isinstance(dataset, workloads.SplitIntegers)}
    return loading.open(dataset, **options)


def by_hand(dataset: TinyMap, loading: Loading) -> Peer:
    """Take shuffled samples and stack them in a bare loop."""

    def batches() -> Iterator[Any]:
        order, size = torch.randperm(len(dataset)).tolist(), loading.batch_size
        for first in range(0, len(order) - size + 1, size):
            yield default_collate([dataset[index] for index in order[first : first + size]])

    return Peer(batches, 0, len(dataset) // loading.batch_size)


if __name__ == "__main__":
    sys.exit(main())
