"""Announcing upcoming samples to a dataset, on every engine."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data

from feedline import DataLoader
from feedline.abc import AheadSource
from feedline.errors import FeedlineWarning
from feedline.types import Call, IndexBlock, Task
from feedline.workers.fetch.announcing import announcer_of


class Expecting(AheadSource):
    """Samples say whether they were announced before they were requested; a batch is read when the test allows it."""

    def __init__(self, allowed: Path, count: int = 40) -> None:
        self.allowed = allowed
        self.count = count
        self.expected = set[int]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, bool]:
        deadline = time.monotonic() + 60
        while not (self.allowed / str(index // 4)).exists() and time.monotonic() < deadline:
            threading.Event().wait(0.001)
        return index, index in self.expected

    def fetch_ahead(self, indices: Any) -> None:
        self.expected.update(indices.tolist())


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_all_batches_but_the_first_two_are_announced(engine: Any, tmp_path: Path) -> None:
    loader = DataLoader(Expecting(tmp_path), 4, num_workers=1, engine=engine, prefetch_factor=4)
    iterator = iter(loader)
    for batch in range(10):
        (tmp_path / str(batch)).touch()  # the tasks of the next three batches have already been sent
        indices, announced = next(iterator)
        assert indices.tolist() == list(range(4 * batch, 4 * batch + 4))
        assert all(announced.tolist()) or batch < 2, batch
    assert next(iterator, None) is None


class AnnouncedIndices(AheadSource):
    fetches_ahead = True

    def __init__(self) -> None:
        self.announced_batches: list[list[int]] = []

    def fetch_ahead(self, indices: Any) -> None:
        assert indices.dtype == np.int64
        self.announced_batches.append(indices.tolist())


def test_indices_of_any_form_are_announced_as_an_array() -> None:
    dataset = AnnouncedIndices()
    announcer = announcer_of(dataset)
    assert announcer is not None
    contents = [IndexBlock(np.arange(3)), [4, 5], 7, np.int64(8), torch.tensor([1, 2]), ["a"], [[1, 2]], Call("close")]
    announcer.announce(Task(0, indices) for indices in contents)
    assert dataset.announced_batches == [[0, 1, 2], [4, 5], [7], [8], [1, 2]]


def test_indices_into_a_subset_are_announced_as_indices_into_its_dataset() -> None:
    dataset = AnnouncedIndices()
    inner: Any = torch.utils.data.Subset(dataset, [10, 20, 30, 40])  # type: ignore[arg-type]
    announcer = announcer_of(torch.utils.data.Subset(inner, range(3, 0, -1)))
    assert announcer is not None
    announcer.announce([Task(0, [0, 2])])
    assert dataset.announced_batches == [[40, 20]]


def test_after_fetch_ahead_fails_it_warns_and_announces_nothing_more() -> None:
    class Failing(AnnouncedIndices):
        def fetch_ahead(self, indices: Any) -> None:
            super().fetch_ahead(indices)
            raise OSError("no route")

    dataset = Failing()
    announcer = announcer_of(dataset)
    assert announcer is not None
    with pytest.warns(FeedlineWarning, match="no route"):
        announcer.announce([Task(0, [0])])
    announcer.announce([Task(0, [1])])
    assert dataset.announced_batches == [[0]]
