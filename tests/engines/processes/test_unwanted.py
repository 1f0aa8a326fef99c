"""Tasks that travel together, and that nobody wants any more when the worker comes to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from feedline import DataLoader
from feedline.testing import Gate

pytestmark = pytest.mark.sample(4)


class Held(Dataset[int]):
    """Samples that take no time, up to one of them; from there on each leaves a mark in a file and waits at a gate."""

    def __init__(self, held_from: int, marks: Path, gate: Gate | None = None) -> None:
        self.held_from, self.marks, self.gate = held_from, marks, gate
        marks.touch()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        if index >= self.held_from:
            with self.marks.open("ab") as file:
                file.write(b".")
            if self.gate is not None:
                self.gate.pass_through()
        return index

    def begun(self) -> int:
        return self.marks.stat().st_size


@pytest.mark.parametrize("workers", [1, 2])
def test_an_epoch_that_was_left_costs_one_task_of_each_worker(workers: int, tmp_path: Path) -> None:
    with Gate(tmp_path / "gate") as gate:
        dataset = Held(400, tmp_path / "marks", gate)
        loader: Any = DataLoader(dataset, batch_size=1, num_workers=workers, persistent_workers=True)
        for number, _ in enumerate(loader):
            if number == 392:  # what comes next was asked for long ago, several in a message
                break
        gate.wait_until_reached(workers)
        begun = dataset.begun()
        batches = iter(loader)
        gate.open(1000)
        assert next(batches).tolist() == [0]
        # The task that each was at, and one that was begun before the worker heard of it.
        assert dataset.begun() - begun <= workers
        loader.close()


def test_what_comes_after_tasks_that_nobody_wants_is_done(tmp_path: Path) -> None:
    dataset = Held(400, tmp_path / "marks")
    loader: Any = DataLoader(dataset, batch_size=1, num_workers=2, persistent_workers=True)
    for left_at in (392, 5, 395, 399, 0, 401):
        seen = []
        for batch in loader:
            seen.append(batch.item())
            if len(seen) > left_at:
                break
        assert seen == list(range(left_at + 1))
    loader.close()
