"""Pinned slots. Needs a CUDA device: run with `pytest -m gpu` on a machine that has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from feedline import DataLoader
from feedline.types import EngineName

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.sample(3),
]

ENGINES = [("auto", 0), ("thread", 2), ("process", 2)]


class Numbered(Dataset[torch.Tensor]):
    """Sample i is an image filled with i."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 128, 128), float(index))


def batches(engine: EngineName, workers: int, **options: Any) -> Iterator[Any]:
    return iter(DataLoader(Numbered(), 16, num_workers=workers, engine=engine, pin_memory=True, **options))


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_batches_are_pinned(engine: EngineName, workers: int) -> None:
    assert all(batch.is_pinned() for batch in batches(engine, workers))


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_a_pending_copy_never_reads_the_next_batch(engine: EngineName, workers: int) -> None:
    copies = []
    for batch in batches(engine, workers):
        torch.cuda._sleep(20_000_000)  # keeps the stream busy, so the copy starts long after the batch was dropped
        copies.append(batch.to("cuda", non_blocking=True))
        del batch
    rows = torch.cat([copy[:, 0, 0, 0] for copy in copies]).cpu()
    torch.testing.assert_close(rows, torch.arange(400.0))
    assert all(bool((copy == copy[:, :1, :1, :1]).all()) for copy in copies)


def test_a_pending_copy_on_a_side_stream_never_reads_the_next_batch() -> None:
    side = torch.cuda.Stream()
    copies = []
    for batch in batches("process", 2):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            copies.append(batch.to("cuda", non_blocking=True))
        del batch  # while the current stream is idle
    side.synchronize()
    assert torch.cat([copy[:, 0, 0, 0] for copy in copies]).cpu().tolist() == list(range(400))
    assert all(bool((copy == copy[:, :1, :1, :1]).all()) for copy in copies)


class Pair:
    def __init__(self, samples: list[torch.Tensor]) -> None:
        self.images = torch.stack(samples)
        self.pinned_by_hand = False

    def pin_memory(self) -> Pair:
        self.images = self.images.pin_memory()
        self.pinned_by_hand = True
        return self


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_the_pin_memory_method_of_a_batch_is_called(engine: EngineName, workers: int) -> None:
    for batch in batches(engine, workers, collate_fn=Pair):
        assert batch.pinned_by_hand
        assert batch.images.is_pinned()
