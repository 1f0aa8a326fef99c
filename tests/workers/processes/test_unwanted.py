"""Tasks sent in one message that are obsolete by the time the worker reaches them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from feedline import DataLoader

pytestmark = pytest.mark.sample(4)


class TurnsSlow(Dataset[int]):
    """Samples are fast before `slow_from`; from there on each writes a mark to a file and takes a while."""

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

    def started(self) -> int:
        return self.marks.stat().st_size


@pytest.mark.real_time  # a worker is notified while it makes a sample
@pytest.mark.parametrize("workers", [1, 2])
def test_leaving_an_epoch_early_costs_at_most_one_more_task_per_worker(workers: int, tmp_path: Path) -> None:
    dataset = TurnsSlow(400, tmp_path / "marks", seconds=0.2)
    loader: Any = DataLoader(dataset, batch_size=1, num_workers=workers, persistent_workers=True)
    for number, _ in enumerate(loader):
        if number == 392:  # the next tasks were sent long ago, several in one message
            break
    while dataset.started() < workers:
        pass
    started = dataset.started()
    assert next(iter(loader)).tolist() == [0]
    # Besides its current task, each worker may start one before it is notified.
    assert dataset.started() - started <= workers
    loader.close()


def test_tasks_after_obsolete_ones_are_done(tmp_path: Path) -> None:
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
