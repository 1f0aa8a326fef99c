"""Batches that are made in the training process, on request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from feedline import DataLoader, Loader
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.inline_batches import InlineBatches
from feedline.delivery.state import Snapshot
from feedline.frameworks.torch import TorchFramework
from feedline.memory.arena import Arena
from feedline.memory.slot_table import SLACK_BYTES
from feedline.types import DatasetKind, IndexBlock, Position
from feedline.workers.runner import Runner
from tests.loader.beginnings import Numbers, Remembering, Stream, bookmark_of, resources_with, spec_of


def of_tensors(plan: list[IndexBlock], arena: Arena | None) -> InlineBatches:
    rows = torch.arange(1024.0).repeat_interleave(8192).reshape(1024, 8192)  # 32 KB each
    spec = WorkerSpec(
        TensorDataset(rows), DatasetKind.MAP, default_collate, TorchFramework(), worker_count=0, base_seed=0
    )
    return InlineBatches(spec, bookmark_of(plan), None, resources_with(arena), None)


def test_small_batches_of_tensors_are_made_without_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = IndexBlock(np.arange(1024)), IndexBlock(np.array([3]))
    monkeypatch.setattr(Runner, "make", lambda *_: "by a task")
    batches = of_tensors([small, large, IndexBlock(np.array([1024]))], None)
    assert next(batches)[0].unique().tolist() == [3]
    assert list(batches) == ["by a task"] * 2  # the last one has an index out of range


def test_memory_of_large_batches_is_released_while_small_ones_are_made() -> None:
    arena = Arena(2, shared=False, budget=1 << 30)
    large, small = IndexBlock(np.arange(1024)), IndexBlock(np.array([3]))
    batches = of_tensors([large] + [small] * 1000, arena)
    next(batches)
    assert arena.resident_bytes > SLACK_BYTES
    for _ in range(999):
        assert next(batches)[0].unique().tolist() == [3]
    assert arena.resident_bytes < SLACK_BYTES


def test_setup_errors_are_raised_at_once() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise OSError("no such shard")

    with pytest.raises(OSError, match="no such shard"):
        InlineBatches(spec_of(Broken(), DatasetKind.ITERABLE), bookmark_of([1]), None, resources_with(None), None)


def test_the_dataset_resumes_from_its_state_and_the_checkpoint_reads_it() -> None:
    dataset = Remembering()
    checkpoint = bookmark_of([[0], [1], [2]])
    snapshot = Snapshot(0, streams=(Position({"asked": 40}),))
    batches = InlineBatches(spec_of(dataset), checkpoint, snapshot, resources_with(None), None)
    next(batches)
    assert checkpoint.live is not None
    assert checkpoint.live().dataset == {"asked": 41}


def test_batches_delivered_early_are_not_delivered_again() -> None:
    checkpoint = bookmark_of([[0], [1], [2], [3], [0], [1]])
    batches = InlineBatches(spec_of(Numbers()), checkpoint, Snapshot(0, early=(1, 2, 5)), resources_with(None), None)
    assert list(batches) == [[0], [3], [0]]
    assert (checkpoint.entry.progress.delivered, checkpoint.entry.progress.ended) == (6, True)


def test_a_stream_resumes_where_it_was() -> None:
    checkpoint = bookmark_of([2] * 9)
    snapshot = Snapshot(0, streams=(Position(batches=2, read=4),))
    checkpoint.batch_size = 2
    batches = InlineBatches(spec_of(Stream(), DatasetKind.ITERABLE), checkpoint, snapshot, resources_with(None), None)
    assert list(batches) == [[4, 5], [6]]
    assert checkpoint.entry.progress.delivered == 4
    assert checkpoint.entry.progress.ended


# -- interrupts ---


class Interrupted:
    """Raises KeyboardInterrupt once, while sample 5 is made."""

    def __init__(self) -> None:
        self.is_due = True

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 5 and self.is_due:
            self.is_due = False
            raise KeyboardInterrupt
        return index


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_after_an_interrupt_the_next_batch_comes_and_the_state_has_all(kind: Any) -> None:
    loader = kind(Interrupted(), 2)
    batches = iter(loader)
    assert lists(islice(batches, 2)) == [[0, 1], [2, 3]]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    other = kind(list(range(10)), 2)
    other.load_state_dict(loader.state_dict())
    assert lists(other) == [[4, 5], [6, 7], [8, 9]]
    assert lists(batches) == [[6, 7], [8, 9]]
