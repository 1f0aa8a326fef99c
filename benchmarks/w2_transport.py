"""Question: how many bytes per second travel from the workers to the training loop, and on to the device?

Knob: the number of workers, feedline's engine, and what the consumer does with a batch: `touch` reads one element of
every page, `read` reads everything, on its own core.

Held still: finished float32 samples of 3x224x224 from a pool of 32, so making a sample costs nothing; batches of 64
(38.5 MB); a long epoch, so no round meets its end. Both loaders get the same dataset object and the same arguments.

With `--device cuda` the consumer copies every batch to the device without waiting (`non_blocking`), batches are pinned,
and a measurement ends when the last copy has.

How to read it: GB/s of batches delivered. A loader that maps memory lazily looks fast under `touch` and falls back
under `read`. `consumer CPU` says what one batch costs the training loop's own thread, reading included.

    python -m benchmarks.w2_transport
    python -m benchmarks.w2_transport --device cuda --engine process --workers 0 1 2 4 8 12
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks import harness, rows, workloads

CONSUMERS = {"touch": workloads.touch, "read": workloads.read}
COLUMNS = (
    rows.Column("gb_per_s", "GB/s", digits=2, with_range=True),
    rows.Column("samples_per_s", "samples/s"),
    *rows.COSTS,
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=2.0, warmup=12, engine=["process", "thread"])
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--consumer", nargs="+", choices=sorted(CONSUMERS), default=["touch", "read"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where batches go (cpu)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=workloads.CROP, help="height and width of a sample (224)")
    parser.add_argument("--pool", type=int, default=32, help="different samples (32)")
    parser.add_argument("--prefetch", type=int, help="prefetch_factor of both loaders; torch's default if unset")
    parser.add_argument(
        "--start-method", choices=rows.START_METHODS, help="how workers start; Python's default if unset"
    )
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda":
        arguments.consumer = ["copy"]
    outcomes = rows.measure_entries(entries(arguments), arguments)
    sample_bytes = 3 * arguments.size**2 * 4
    for outcome in outcomes:
        for figures in outcome.rounds:
            figures["gb_per_s"] = (figures["samples_per_s"] or 0.0) * sample_bytes / 1e9
    rows.publish("w2_transport", outcomes, arguments, columns=COLUMNS)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    dataset = workloads.ReadySamples(10_000_000, pool=arguments.pool, shape=(3, arguments.size, arguments.size))
    on_device = arguments.device == "cuda"
    return [
        harness.Entry(
            case={"consumer": consumer, "workers": workers},
            side=side,
            open=partial(
                side.open,
                dataset,
                batch_size=arguments.batch_size,
                pin_memory=on_device,
                **harness.worker_arguments(workers, start_method=arguments.start_method, prefetch=arguments.prefetch),
            ),
            consume=copy_to_device() if on_device else CONSUMERS[consumer],
            batch_size=arguments.batch_size,
            finish=torch.cuda.synchronize if on_device else harness.nothing_to_finish,
        )
        for consumer in arguments.consumer
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]


def copy_to_device() -> Callable[[torch.Tensor], None]:
    """Make a consumer that keeps the latest batch on the device, as a training loop would."""
    held: list[torch.Tensor] = []

    def copy(batch: torch.Tensor) -> None:
        held[:] = [batch.to("cuda", non_blocking=True)]

    return copy


if __name__ == "__main__":
    sys.exit(main())
