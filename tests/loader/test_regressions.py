"""Faults that were found by reading and are here to stay mended, each through the public API."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from feedline import DataLoader
from feedline.abc import Scheduler, WorkerView
from feedline.types import EngineName


class Constant(Dataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.full((1000,), float(index))


class Holding(Dataset[Any]):
    """Holds a batch of another loader."""

    def __init__(self, held: torch.Tensor | None) -> None:
        self.held = held

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        assert self.held is not None
        return self.held.sum().item()


def test_a_batch_that_a_forked_workers_dataset_holds_stays_what_it_was() -> None:
    source = iter(DataLoader(Constant(400), 4, num_workers=1))
    held = next(source)
    expected = held.sum().item()
    dataset = Holding(held)
    sums = iter(DataLoader(dataset, 1, num_workers=1, prefetch_factor=1))
    assert next(sums).item() == expected
    dataset.held = None
    del held
    for _ in range(60):  # long enough for the slot to be written again, were it free
        next(source)
    assert {value.item() for value in sums} == {expected}


class Unreliable(IterableDataset[int]):
    def __init__(self) -> None:
        self.epochs = 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        if self.epochs == 2:
            raise ConnectionError("store away")
        return iter(range(100 * self.epochs, 100 * self.epochs + 6))


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_an_epoch_that_fails_to_begin_delivers_nothing_of_the_last_one(engine: EngineName) -> None:
    loader = DataLoader(Unreliable(), 1, num_workers=1, persistent_workers=True, engine=engine)
    assert next(iter(loader)).item() == 100
    iterator = iter(loader)
    for _ in range(3):
        with pytest.raises(ConnectionError, match="store away"):
            next(iterator)
    assert [batch.item() for batch in loader] == [300, 301, 302, 303, 304, 305]
    loader.close()


class OneStuck(Dataset[int]):
    """Sample 20 waits for a pipe that nobody writes to; the others take a moment."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> int:
        if index == 20:
            os.read(self.pipe, 1)
        time.sleep(0.02)  # the duration of the work, not a way to wait for anything
        return index


def test_the_time_out_is_not_extended_by_batches_that_overtake() -> None:
    reader, writer = os.pipe()
    iterator = iter(DataLoader(OneStuck(reader), 1, num_workers=2, timeout=0.5))
    for _ in range(20):
        next(iterator)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds"):
        next(iterator)
    assert time.monotonic() - begun < 1.5
    del iterator
    os.close(reader)
    os.close(writer)


class Mixed(Dataset[Any]):
    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "ab") as file:
            file.write(b".")
        return torch.zeros(1, dtype=torch.float64), float(index), index


def test_splitting_makes_no_batch_twice(tmp_path: Any) -> None:
    path = tmp_path / "reads"
    loader = DataLoader(Mixed(str(path)), 20, num_workers=2, split=2)
    labels = torch.cat([batch[2] for batch in loader])
    assert labels.tolist() == list(range(200))
    assert path.stat().st_size == 200


class Patient(Scheduler):
    """Gives every worker one task at a time, and delivers when three batches are there or nothing else comes."""

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        return next((worker.id for worker in workers if worker.outstanding == 0), None)

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return min(ready) if len(ready) >= 3 or expected >= 10 else None


def test_a_task_that_was_held_back_is_offered_again_when_a_worker_has_answered() -> None:
    loader = DataLoader(Constant(12), 1, num_workers=2, scheduler=Patient())
    assert sorted(int(batch[0, 0]) for batch in loader) == list(range(12))
