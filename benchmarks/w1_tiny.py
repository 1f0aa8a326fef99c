"""Question: what does the loader itself cost when a sample is next to nothing?

Knob: the number of workers (0, 1, 2), and how the dataset is written: torch's array-backed `TensorDataset`, which can
be gathered a batch at a time, or a plain map-style class that returns `(tensor(10), int)` for one index at a time.

Held still: 100,000 samples of ten floats and a label, batches of 64, shuffled by torch's own sampler; the consumer
touches both tensors. Both loaders get the same dataset object and the same arguments.

How to read it: `x torch` compares at the same number of workers, `x torch's best` with whatever number of workers suits
torch best (often none), `x own inline` with the same library without workers: below 1 means that workers do harm.

    python -m benchmarks.w1_tiny
    python -m benchmarks.w1_tiny --dataset map --workers 0 2 --json w1.jsonl
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks import harness, rows, workloads

DATASETS = {"tensors": workloads.tiny_tensors, "map": workloads.TinyMap}


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=1.0, warmup=32, engine=["process"])
    parser.add_argument("--dataset", nargs="+", choices=sorted(DATASETS), default=sorted(DATASETS))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--samples", type=int, default=100_000, help="length of the dataset (100,000)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--start-method", choices=rows.START_METHODS, help="how workers start; Python's default if unset"
    )
    arguments = parser.parse_args(argv)
    rows.publish("w1_tiny", rows.measure_entries(entries(arguments), arguments), arguments)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    made = {name: DATASETS[name](arguments.samples) for name in arguments.dataset}
    return [
        harness.Entry(
            case={"dataset": name, "workers": workers},
            side=side,
            open=partial(
                side.open,
                dataset,
                batch_size=arguments.batch_size,
                shuffle=True,
                drop_last=True,
                **harness.worker_arguments(workers, start_method=arguments.start_method),
            ),
            consume=workloads.touch,
            batch_size=arguments.batch_size,
        )
        for name, dataset in made.items()
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]


if __name__ == "__main__":
    sys.exit(main())
