"""What one program keeps of a loader's memory, measured from inside: `w12_retention` runs this in a fresh interpreter.

Prints one JSON object with MB: `held` (tensors that the program itself still has at the end), `window` (batches in
flight times the bytes of a usual batch), and as summed PSS of parent and workers, above the program before its loader:
`running` (with the last batch), `end` (after a while without work) and `peak` (the highest reading between batches).
Mapped files are left out: they are libraries, of which other programs may have or drop the same pages meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import harness, machine, workloads


@dataclass
class Program:
    """A training script: its loader, what it keeps, and what it has come to weigh."""

    side: harness.Side
    arguments: argparse.Namespace

    def __post_init__(self) -> None:
        # Any: tensors, or batches of them.
        self.kept: list[Any] = []
        self.peak = 0.0
        self._read_at = 0.0

    def open(self, dataset: object) -> harness.SizedIterable:
        workers = harness.worker_arguments(self.arguments.workers)
        return self.side.open(dataset, batch_size=self.arguments.batch_size, **workers)

    def images(self, *, tensors: int = 1) -> workloads.LabelledImages:
        count = self.arguments.batches * self.arguments.batch_size
        return workloads.LabelledImages(count, self.arguments.image_mb, tensors=tensors)

    def batches(self, loader: harness.SizedIterable) -> Iterator[Any]:
        """Go through an epoch; memory is read between batches, not much more often than is needed for a peak."""
        for batch in loader:
            workloads.touch(batch)
            yield batch
            del batch
            if time.perf_counter() - self._read_at > 0.05:
                self.peak = max(self.peak, memory_mb())
                self._read_at = time.perf_counter()


def keep_labels(program: Program) -> harness.SizedIterable:
    loader = program.open(program.images())
    for _, label in program.batches(loader):
        program.kept.append(label)
    return loader


def keep_every_tenth(program: Program) -> harness.SizedIterable:
    loader = program.open(program.images())
    for number, batch in enumerate(program.batches(loader)):
        if number % 10 == 0:
            program.kept.append(batch)
    return loader


def keep_half_of_each(program: Program) -> harness.SizedIterable:
    loader = program.open(program.images(tensors=2))
    for image, _, _ in program.batches(loader):
        program.kept.append(image)
    return loader


def spike_in_samples(program: Program) -> harness.SizedIterable:
    return _run_through(program, workloads.Spiky(program.images(), *_spikes(program), program.arguments.spike_mb))


def spike_of_batches(program: Program) -> harness.SizedIterable:
    images, (first, last) = program.images(), _spikes(program)
    return _run_through(program, workloads.Uneven(images, first, last, program.arguments.spike_mb))


def _spikes(program: Program) -> tuple[int, int]:
    """Choose the samples of two batches (with two workers: one each) in the first third of the epoch."""
    first = program.arguments.batches // 3 // 2 * 2 * program.arguments.batch_size
    return first, first + 2 * program.arguments.batch_size


# Any: some dataset.
def _run_through(program: Program, dataset: Any) -> harness.SizedIterable:
    loader = program.open(dataset)
    for _ in program.batches(loader):
        pass
    return loader


def close_keeping_labels(program: Program) -> None:
    _close_four(program, lambda batch: batch[1])


def close_keeping_tensors(program: Program) -> None:
    _close_four(program, lambda batch: batch[0])


# Any: a batch, and a tensor of it.
def _close_four(program: Program, keep: Callable[[Any], Any]) -> None:
    for _ in range(4):
        loader = program.open(program.images())
        for number, batch in enumerate(program.batches(loader)):
            if number == 0:
                program.kept.append(keep(batch))
            del batch
        harness.close(loader)
        del loader


def fork_in_every_step(program: Program) -> harness.SizedIterable:
    loader = program.open(program.images())
    for number, _ in enumerate(program.batches(loader)):
        if number < 16:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
    return loader


CASES: dict[str, Callable[[Program], harness.SizedIterable | None]] = {
    "keep labels": keep_labels,
    "keep every tenth": keep_every_tenth,
    "keep half of each": keep_half_of_each,
    "spike in samples": spike_in_samples,
    "spike of batches": spike_of_batches,
    "closed, labels kept": close_keeping_labels,
    "closed, tensors kept": close_keeping_tensors,
    "forks": fork_in_every_step,
}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--engine")
    parser.add_argument("--case", choices=list(CASES), required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--image-mb", type=float, required=True)
    parser.add_argument("--spike-mb", type=float, required=True)
    parser.add_argument("--idle-s", type=float, required=True)
    return parser


def main() -> int:
    arguments = parser().parse_args()
    with harness.expected_warnings():
        sys.stdout.write(json.dumps(measure(harness.Side(arguments.library, arguments.engine), arguments)))
    return 0


def measure(side: harness.Side, arguments: argparse.Namespace) -> harness.Figures:
    program = Program(side, arguments)
    if side.library == harness.FEEDLINE:
        import feedline  # its modules are not what a program keeps

        assert feedline.DataLoader is not None
    machine.trim()
    alone = memory_mb()
    loader = CASES[arguments.case](program)
    running = memory_mb()
    time.sleep(arguments.idle_s)
    end = memory_mb()
    if loader is not None:
        harness.close(loader)
    return {
        "held": sum(tensor.nbytes for kept in program.kept for tensor in _tensors(kept)) / 1e6,
        "window": max(1, 2 * arguments.workers) * arguments.batch_size * arguments.image_mb,
        "running": running - alone,
        "end": end - alone,
        "peak": max(program.peak, running, end) - alone,
    }


def memory_mb() -> float:
    found = machine.pss_bytes(kinds=("Pss_Anon", "Pss_Shmem"))
    if found is None:
        raise RuntimeError("this system does not tell the summed PSS of processes; run this benchmark on Linux")
    return found / 1e6


# Any: a tensor, or a batch of them.
def _tensors(kept: Any) -> list[torch.Tensor]:
    return [kept] if isinstance(kept, torch.Tensor) else list(kept)


if __name__ == "__main__":
    sys.exit(main())
