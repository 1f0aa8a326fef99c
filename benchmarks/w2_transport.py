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

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks import flags
from feedline.tools.measure import harness, rows, workloads
from feedline.tools.measure.steady import touch

COLUMNS = (
    rows.Column("gb_per_s", "GB/s", digits=2, with_range=True, better="higher"),
    rows.Column("samples_per_s", "samples/s"),
    *rows.COSTS,
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__,
        engine=["process", "thread"],
        seconds=2.0,
        warmup=12,
        workers=[0, 1, 2],
        batch_size=64,
        size=224,
        pool=32,
    )
    flags.choose(parser, "--consumer", ("touch", "read"))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where batches go (cpu)")
    parser.add_argument("--prefetch", type=int, help="prefetch_factor of both loaders; torch's default if unset")
    flags.add_start_method(parser)
    arguments = parser.parse_args(argv)
    on_device = arguments.device == "cuda"
    dataset = workloads.ReadySamples(10_000_000, pool=arguments.pool, shape=(3, arguments.size, arguments.size))
    # Any: a tensor.
    consumers: dict[str, Callable[[Any], None]] = {"touch": touch, "read": read, "copy": CopyToDevice()}
    entries: list[harness.Entry] = []
    for consumer in ["copy"] if on_device else arguments.consumer:
        entries += rows.entries(
            arguments,
            {"consumer": consumer},
            rows.both(dataset, dataset, pin_memory=on_device),
            consume=consumers[consumer],
            finish=torch.cuda.synchronize if on_device else harness.nothing,
        )
    outcomes = rows.measure(entries, arguments)
    for outcome in outcomes:
        for figures in outcome.rounds:
            figures["gb_per_s"] = (figures["samples_per_s"] or 0.0) * 3 * arguments.size**2 * 4 / 1e9
    rows.publish("w2_transport", outcomes, arguments, columns=COLUMNS)
    return 0


def read(batch: torch.Tensor) -> None:
    """Read every element, on the consumer's own core: NumPy's maximum runs at the speed of memory, in one thread."""
    batch.numpy().max()


class CopyToDevice:
    """A consumer that keeps the latest batch on the device, as a training loop would."""

    def __call__(self, batch: torch.Tensor) -> None:
        self.held = batch.to("cuda", non_blocking=True)


if __name__ == "__main__":
    sys.exit(main())
