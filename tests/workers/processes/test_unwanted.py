"""Tasks that travel together, and that nobody wants any more when the worker comes to them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from feedline import DataLoader

pytestmark = pytest.mark.sample(4)


class TurnsSlow(Dataset[int]):
    """Samples that take no time, up to one of them; from there on each leaves a mark in a file and takes a while."""

    def __init__(self, slow_from: int, marks: Path, seconds: float = 0.0) -> None:
        self.slow_from, self.marks, self.seconds = slow_from, marks, seconds
        marks.touch()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        if index >= self.slow_from:
            with self.marks.open("ab") as file:
                file.write(b".")
            time.sleep(self.seconds)
        return index

    def begun(self) -> int:
        return self.marks.stat().st_size


@pytest.mark.real_time  # a worker hears of it while it is at a sample
@pytest.mark.parametrize("workers", [1, 2])
def test_an_epoch_that_was_left_costs_one_task_of_each_worker(workers: int, tmp_path: Path) -> None:
    dataset = TurnsSlow(400, tmp_path / "marks", seconds=0.2)
    loader: Any = DataLoader(dataset, batch_size=1, num_workers=workers, persistent_workers=True)
    for number, _ in enumerate(loader):
        if number == 392:  # what comes next was asked for long ago, several in a message
            break
    while dataset.begun() < workers:
        pass
    begun = dataset.begun()
    assert next(iter(loader)).tolist() == [0]
    # The task that each was at, and one that was begun before the worker heard of it.
    assert dataset.begun() - begun <= workers
    loader.close()


def test_what_comes_after_tasks_that_nobody_wants_is_done(tmp_path: Path) -> None:
    dataset = TurnsSlow(400, tmp_path / "marks")
    loader: Any = DataLoader(dataset, batch_size=1, num_workers=2, persistent_workers=True)
    for left_at in (392, 5, 395, 399, 0, 401):
        seen = []
        for batch in loader:
            seen.append(batch.item())
            if len(seen) > left_at:
                break
        assert seen == list(range(left_at + 1))
    loader.close()
