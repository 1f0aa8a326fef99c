"""Question: what does the loader itself cost when samples cost almost nothing?

Knob: the number of workers (0, 1, 2), and how the dataset is written: torch's array-backed `TensorDataset`, which can
be gathered a batch at a time, or a plain map-style class that returns `(tensor(10), int)` for one index at a time.

Held still: 100,000 samples of ten floats and a label, batches of 64, shuffled by torch's own sampler; the consumer
touches both tensors. Both loaders get the same dataset object and the same arguments.

How to read it: `x torch` compares at the same number of workers, `x torch's best` with whatever number of workers suits
torch best (often none), `x own inline` with the same library without workers: below 1 means that workers make it
slower.

    python -m benchmarks.w1_tiny
    python -m benchmarks.w1_tiny --dataset map --workers 0 2 --json w1.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import flags
from feedline.tools.measure import harness, rows, workloads

DATASETS = {"tensors": workloads.tiny_tensors, "map": workloads.TinyMap}


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], seconds=1.0, warmup=32, workers=[0, 1, 2], samples=100_000, batch_size=64
    )
    flags.choose(parser, "--dataset", sorted(DATASETS))
    flags.add_start_method(parser)
    arguments = parser.parse_args(argv)
    entries: list[harness.Entry] = []
    for name in arguments.dataset:
        dataset = DATASETS[name](arguments.samples)
        entries += rows.loaders(arguments, {"dataset": name}, rows.same(dataset), shuffle=True, drop_last=True)
    rows.publish("w1_tiny", rows.measure(entries, arguments), arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
