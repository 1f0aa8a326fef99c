"""Question: on a Ray cluster, how does feedline's engine compare with Ray Data, and with feedline's own processes?

Knob: who makes the batches: `feedline/ray` (actors), `feedline/process` (no Ray at all), `ray/tasks` and `ray/actors`
(the two ways of `map_batches`, with `iter_torch_batches`).

Held still: the images of `w3_images` (synthetic JPEGs of 500x375, decoded, cropped to 224x224, flipped, normalised),
batches of 64 in an order drawn at random, two workers of one CPU each, a local cluster that is started before the
clock. Every measurement is a fresh program.

How to read it: `first` is milliseconds from requesting an iterator to its first batch, including the start of the
workers (which import torch). `images/s` is the steady rate, from the fourth batch on. `PSS` is the highest sum over the
program, its workers and, except for `feedline/process`, Ray's own processes.

    python -m benchmarks.ray_data
    python -m benchmarks.ray_data --batches 40 --workers 2 4 --json ray.jsonl
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import flags, program, workloads
from feedline.tools.measure import harness, jpegs, rows

COLUMNS = (
    rows.Column("images_per_s", "images/s", with_range=True, better="higher"),
    rows.Column("first", "first\nms", with_range=True, better="lower"),
    rows.Column("pss_mb", "PSS\nMB", with_range=True, better="lower"),
)
SIDES = tuple(
    harness.Side(*names.split("/")) for names in ("feedline/ray", "feedline/process", "ray/tasks", "ray/actors")
)
_STORE_BYTES = 512 << 20
_SETTLED = 3
"""Batches that do not count: they were made while workers started."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, rounds=3, workers=[2], images=500, batch_size=64, batches=30)
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    workloads.jpeg_files(arguments.images, arguments.data)
    outcomes = rows.measure(entries(arguments), arguments)
    rows.publish("ray_data", outcomes, arguments, columns=COLUMNS, details=False)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    made = []
    for workers in arguments.workers:
        for side in SIDES:
            run = partial(
                program.run,
                "ray_data",
                side,
                workers=workers,
                images=arguments.images,
                batch_size=arguments.batch_size,
                batches=arguments.batches,
                data=None if arguments.data is None else str(arguments.data),
            )
            made.append(harness.Entry({"workers": workers}, side, partial(harness.watched, run)))
    return made


def measure(
    side: harness.Side, workers: int, images: int, batch_size: int, batches: int, data: str | None
) -> harness.Figures:
    """Go through one epoch in this program."""
    length = batches * batch_size
    dataset = jpegs.JpegFiles(workloads.jpeg_files(images, None if data is None else Path(data)), "opencv", length)
    uses_ray = side.engine != "process"
    if uses_ray:
        import ray

        os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
        options = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": _STORE_BYTES}
        ray.init(address="local", num_cpus=workers + 1, **options)
    try:
        if side.library == "ray":
            opened: Any = partial(_ray_data, dataset, workers, batch_size, side.engine or "")
        else:
            opened = side.open(dataset, batch_size=batch_size, shuffle=True, num_workers=workers).__iter__
        return _timed(opened, batch_size)
    finally:
        if uses_ray:
            ray.shutdown()


def _timed(opened: Any, batch_size: int) -> harness.Figures:
    began = settled = time.perf_counter()
    first, count, peak = 0.0, 0, 0.0
    for batch in opened():
        workloads.touch(batch)
        count += 1
        if count == 1:
            first = time.perf_counter() - began
        if count <= _SETTLED:
            settled = time.perf_counter()
        elif count % 8 == 0:
            peak = max(peak, program.pss_mb())
    elapsed = time.perf_counter() - settled
    return {"first": first * 1e3, "images_per_s": (count - _SETTLED) * batch_size / elapsed, "pss_mb": peak}


# Any: what Ray Data yields.
def _ray_data(dataset: jpegs.JpegFiles, workers: int, batch_size: int, way: str) -> Iterator[Any]:
    """Read the same samples with Ray Data, as its guide has it: one block per batch, as many at a time as workers."""
    import ray

    order = np.random.default_rng(0).permutation(len(dataset))
    samples = ray.data.from_numpy(list(np.split(order, len(order) // batch_size)))
    how = (_Make(dataset), {}) if way == "tasks" else (_Make, {"fn_constructor_args": (dataset,)})
    made = samples.map_batches(how[0], batch_size=batch_size, num_cpus=1, concurrency=workers, **how[1])
    for batch in made.iter_torch_batches(batch_size=batch_size, prefetch_batches=2):
        yield batch["image"]


class _Make:
    """The transform of a batch, as `map_batches` takes it."""

    def __init__(self, dataset: jpegs.JpegFiles) -> None:
        self.dataset = dataset

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"image": np.stack([self.dataset[int(index)].numpy() for index in batch["data"]])}


if __name__ == "__main__":
    sys.exit(program.main(main, measure))
