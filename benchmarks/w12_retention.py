"""Question: how much memory does a program retain if it keeps little, or needed much for a moment?

Knob: what the program does. It keeps the labels of every batch; every tenth batch; one of two large tensors of each. A
sample needs much memory once while it is made; a few batches are large and the others are not. Four loaders are closed
while a label, or a large tensor, of each is kept. The program forks in each of 16 steps while it has a batch.

Held still: 5 MB images, batches of four, two workers (and none), one epoch, a fresh program for every measurement.
Memory is the summed PSS of parent and workers, in which a shared page counts once, without mapped files, above that of
the program before it opens its loader.

How to read it, in MB: `held` is what the program itself still has, `window` the batches that may be in flight.
`running` is read with the last batch, `end` after half a second without work, `peak` is the highest reading between two
batches. Each worker takes some 10 MB. Beyond that, no loader needs more than `held` and `window`; anything in `end`
above them is retained. `above torch` is `end` minus that of torch's loader: below 0 is better. torch's own heap differs
between systems (mimalloc on ARM), and may keep large batches for a while or for good.

    python -m benchmarks.w12_retention
    python -m benchmarks.w12_retention --case "keep labels" --batches 150
    python -m benchmarks.w12_retention --case "spike in samples" --spike-mb 1500 --json w12.jsonl
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks import flags, program, workloads
from feedline.tools.measure import harness, rows

COLUMNS = (
    rows.Column("held", "held\nMB"),
    rows.Column("window", "window\nMB"),
    rows.Column("running", "running\nMB", with_range=True),
    rows.Column("end", "end\nMB", with_range=True),
    rows.Column("above_torch", "above\ntorch", with_range=True),
    rows.Column("peak", "peak\nMB", better="lower"),  # of what is left at the end there is no ratio: it may be nothing
)


@dataclass
class Program:
    """A training script: its loader, what it keeps, and what it has come to weigh."""

    side: harness.Side
    workers: int
    batches: int
    batch_size: int
    image_mb: float
    spike_mb: float
    # Any: tensors, or batches of them.
    kept: list[Any] = field(default_factory=list)
    peak: float = 0.0

    def open(self, dataset: object) -> harness.LoaderLike:
        return self.side.open(dataset, batch_size=self.batch_size, **harness.worker_arguments(self.workers))

    def images(self, *, tensors: int = 1) -> workloads.LabelledImages:
        return workloads.LabelledImages(self.batches * self.batch_size, self.image_mb, tensors=tensors)

    def spikes(self) -> tuple[int, int]:
        """Choose the samples of two batches (with two workers: one each) in the first third of the epoch."""
        first = self.batches // 3 // 2 * 2 * self.batch_size
        return first, first + 2 * self.batch_size

    def epoch(self, loader: harness.LoaderLike) -> Iterator[Any]:
        """Go through an epoch; memory is read between batches, not much more often than is needed for a peak."""
        read_at = 0.0
        for batch in loader:
            workloads.touch(batch)
            yield batch
            del batch
            if time.perf_counter() - read_at > 0.05:
                self.peak = max(self.peak, memory_mb())
                read_at = time.perf_counter()


def keep_labels(script: Program) -> harness.LoaderLike:
    loader = script.open(script.images())
    for _, label in script.epoch(loader):
        script.kept.append(label)
    return loader


def keep_every_tenth(script: Program) -> harness.LoaderLike:
    loader = script.open(script.images())
    for number, batch in enumerate(script.epoch(loader)):
        if number % 10 == 0:
            script.kept.append(batch)
    return loader


def keep_half_of_each(script: Program) -> harness.LoaderLike:
    loader = script.open(script.images(tensors=2))
    for image, _, _ in script.epoch(loader):
        script.kept.append(image)
    return loader


def spike_in_samples(script: Program) -> harness.LoaderLike:
    return _run_through(script, workloads.Spiky(script.images(), *script.spikes(), script.spike_mb))


def spike_of_batches(script: Program) -> harness.LoaderLike:
    return _run_through(script, workloads.Uneven(script.images(), *script.spikes(), script.spike_mb))


def _run_through(script: Program, dataset: object) -> harness.LoaderLike:
    loader = script.open(dataset)
    for _ in script.epoch(loader):
        pass
    return loader


def close_four(place: int, script: Program) -> None:
    """Close four loaders, of each of which one tensor of the first batch is kept."""
    for _ in range(4):
        loader = script.open(script.images())
        for number, batch in enumerate(script.epoch(loader)):
            if number == 0:
                script.kept.append(batch[place])
            del batch
        harness.close(loader)
        del loader


def fork_in_every_step(script: Program) -> harness.LoaderLike:
    loader = script.open(script.images())
    for number, _ in enumerate(script.epoch(loader)):
        if number < 16:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
    return loader


CASES: dict[str, Callable[[Program], harness.LoaderLike | None]] = {
    "keep labels": keep_labels,
    "keep every tenth": keep_every_tenth,
    "keep half of each": keep_half_of_each,
    "spike in samples": spike_in_samples,
    "spike of batches": spike_of_batches,
    "closed, labels kept": partial(close_four, 1),
    "closed, tensors kept": partial(close_four, 0),
    "forks": fork_in_every_step,
}


def main(argv: Sequence[str] | None = None) -> int:
    # One round: memory varies far less than time, and there are many programs to run.
    parser = flags.parser(__doc__, engine=["process", "thread"], rounds=1, workers=[0, 2], batches=60, batch_size=4)
    flags.choose(parser, "--case", list(CASES))
    parser.add_argument("--image-mb", type=float, default=5.0, help="megabytes of one image (5)")
    parser.add_argument("--spike-mb", type=float, default=300.0, help="megabytes that are needed for a moment (300)")
    parser.add_argument("--idle-s", type=float, default=0.5, help="seconds without work before the last reading (0.5)")
    arguments = parser.parse_args(argv)
    given = {name: getattr(arguments, name) for name in ("batches", "batch_size", "image_mb", "spike_mb", "idle_s")}
    entries = [
        harness.Entry(
            {"program": case, "workers": workers},
            side,
            partial(program.run, "w12_retention", side, case=case, workers=workers, **given),
        )
        for case in arguments.case
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]
    outcomes = rows.measure(entries, arguments)
    for outcome in outcomes:
        base = next(o for o in outcomes if o.side.library == harness.TORCH and o.case == outcome.case)
        for ours, theirs in zip(outcome.rounds, base.rounds, strict=True):
            ours["above_torch"] = (ours["end"] or 0.0) - (theirs["end"] or 0.0)
    rows.publish("w12_retention", outcomes, arguments, columns=COLUMNS, details=False)
    return 0


# Any: numbers of `Program`.
def measure(side: harness.Side, case: str, idle_s: float, **sizes: Any) -> harness.Figures:
    """Run one case in this program."""
    script = Program(side, **sizes)
    if side.library == harness.FEEDLINE:
        import feedline  # its modules are not what a program keeps

        assert feedline.DataLoader is not None
    program.trim()
    alone = memory_mb()
    loader = CASES[case](script)
    running = memory_mb()
    time.sleep(idle_s)
    end = memory_mb()
    if loader is not None:
        harness.close(loader)
    tensors = [tensor for kept in script.kept for tensor in ([kept] if isinstance(kept, torch.Tensor) else kept)]
    return {
        "held": sum(tensor.nbytes for tensor in tensors) / 1e6,
        "window": max(1, 2 * script.workers) * script.batch_size * script.image_mb,
        "running": running - alone,
        "end": end - alone,
        "peak": max(script.peak, running, end) - alone,
    }


def memory_mb() -> float:
    """Read the summed PSS without mapped files: libraries, of which other programs may have or drop pages meanwhile."""
    return program.pss_mb(kinds=("Pss_Anon", "Pss_Shmem"))


if __name__ == "__main__":
    sys.exit(program.main(main, measure))
