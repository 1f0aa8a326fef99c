"""A training loop may keep, drop, change, copy and send batches, also after the loader is gone, without wrong data."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from numpy.typing import NDArray

import feedline
from feedline.workers import abilities
from tests.faults.loaders import make

ROWS, WIDTH = 4, 12_000
"""A batch is 192 kB, large enough for a slot on threads too."""


class Marked:
    """Sample i is an array filled with i, in a pair or alone."""

    def __init__(self, count: int, *, paired: bool = False) -> None:
        self.count = count
        self.paired = paired

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        array = np.full(WIDTH, index, np.int32)
        return {"x": array, "y": array * 2} if self.paired else array


class Cached(Marked):
    """Returns the same array object each time a sample is requested."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.samples = [np.full(WIDTH, index, np.int32) for index in range(count)]

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def expected(place: int, step: int = 1) -> NDArray[Any]:
    return np.arange(ROWS * place, ROWS * place + ROWS, dtype=np.int32)[:, None] * step


def is_right(batch: Any, place: int, step: int = 1) -> bool:
    """Return whether this is exactly batch `place`, or rows of it, in either library."""
    array = np.asarray(batch)
    return bool(array.shape == (ROWS, WIDTH) and (array == expected(place, step)).all())


both = pytest.mark.parametrize(("kind", "engine"), [("Loader", "process"), ("DataLoader", "thread")])


def loader_of(kind: str, engine: str, count: int = 16, **options: Any) -> Any:
    """Return a loader that delivers `count` batches."""
    dataset = options.pop("dataset", None) or Marked(count * ROWS)
    return make(kind, dataset, ROWS, workers=2, engine=engine, **options)


@both
def test_all_batches_can_be_kept(kind: str, engine: str) -> None:
    """More batches than there are slots."""
    loader = loader_of(kind, engine, 100)
    kept = list(loader)
    assert all(is_right(batch, place) for place, batch in enumerate(kept))
    changed = kept[50]
    changed[:] = -1
    assert all(is_right(batch, place) for place, batch in enumerate(kept) if batch is not changed), (
        "batches do not share memory"
    )


@both
def test_batches_can_be_changed_in_place(kind: str, engine: str) -> None:
    """As soon as they arrive, while workers continue, without an effect on later batches."""
    loader = loader_of(kind, engine, dataset=Cached(30 * ROWS), persistent=True)
    changed = []
    for _ in range(2):
        for place, batch in enumerate(loader):
            assert is_right(batch, place)
            batch *= -1
            batch -= 1
            changed.append(batch)
            del batch
            if place % 3:
                changed[-2] = None
    loader.close()
    for number, batch in enumerate(changed):
        if batch is not None:
            assert (np.asarray(batch) == -expected(number % 30) - 1).all()


def _check_all(inbox: Any, outbox: Any) -> None:
    """Keep every batch that comes, and check all of them at the end."""
    kept = []
    while (item := inbox.get()) is not None:
        kept.append(item)
    outbox.put([is_right(batch, place) for place, batch in kept])


def _queues(kind: str) -> Any:
    return (torch.multiprocessing if kind == "DataLoader" else multiprocessing).get_context("fork")


@pytest.mark.parametrize(
    ("kind", "engine", "forked"), [("Loader", "process", "in the middle"), ("DataLoader", "process", "before")]
)
def test_batches_can_be_sent_to_another_process(kind: str, engine: str, forked: str) -> None:
    """Through torch's queue, which moves tensors to their own shared memory, or through Python's."""
    context = _queues(kind)
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=_check_all, args=(inbox, outbox), daemon=True)
    if forked == "before":
        process.start()
    kept = []
    for place, batch in enumerate(loader_of(kind, engine, 24)):
        if place == 3 and forked != "before":
            process.start()
        inbox.put((place, batch))
        kept.append(batch)
        del batch
        if place % 2:
            kept[-1] = None
    inbox.put(None)
    assert outbox.get() == [True] * 24
    process.join()
    for channel in (inbox, outbox):
        channel.close()
        channel.join_thread()
    assert all(is_right(batch, place) for place, batch in enumerate(kept) if batch is not None)


@pytest.mark.parametrize(
    ("kind", "engine", "end", "persistent"),
    [
        ("Loader", "process", "close", True),
        ("DataLoader", "process", "delete", False),
        ("Loader", "thread", "delete", True),
        ("DataLoader", "thread", "collect", False),
    ],
)
def test_a_batch_outlives_its_loader(kind: str, engine: str, end: str, persistent: bool) -> None:
    loader = loader_of(kind, engine, persistent=persistent)
    batches = iter(loader)
    held = [next(batches) for _ in range(3)]
    if end == "close":
        loader.close()
        batches.close()
    elif end == "collect":
        loader.me = loader  # only the garbage collector can free it
    del loader, batches
    gc.collect()
    others = list(loader_of(kind, engine))
    assert all(is_right(batch, place) for place, batch in enumerate(held))
    held[1][:] = 5
    assert is_right(held[0], 0)
    assert is_right(held[2], 2)
    assert all(is_right(batch, place) for place, batch in enumerate(others))


class Remembering:
    """A collate function that keeps its last batch, and overwrites it before it makes the next one."""

    previous: Any = None

    def __call__(self, samples: list[Any]) -> Any:
        before = None if self.previous is None else is_right(self.previous, samples[0][0] // ROWS - 1)
        if self.previous is not None:
            self.previous[:] = -7
        self.previous = feedline.collate.default(samples)
        return {"x": self.previous, "before": before}


@pytest.mark.parametrize("memory", ["arena", pytest.param("portable", marks=pytest.mark.slow)])
def test_a_worker_may_keep_and_change_its_batches(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the worker nor the training loop sees what the other writes."""
    if memory == "portable":
        monkeypatch.setattr(abilities, "can_share_arenas", lambda: False)
    kept = []
    for place, batch in enumerate(feedline.Loader(Marked(16 * ROWS), ROWS, workers=1, collate_fn=Remembering())):
        assert batch["before"] is (True if place else None)
        if place % 2:
            batch["x"][:] = 5
        else:
            kept.append((place, batch["x"]))
    assert all(is_right(batch, place) for place, batch in kept)


PARTS: list[Callable[[Any], Any]] = [
    lambda batch: batch[1:3],
    lambda batch: batch[:, ::-1] if isinstance(batch, np.ndarray) else batch[:, ::7],
    lambda batch: batch.T,
    lambda batch: batch.reshape(-1)[5:],
    lambda batch: batch[2:3, 7:8],
    lambda batch: torch.from_numpy(batch)[1] if isinstance(batch, np.ndarray) else batch.numpy()[1],
    lambda batch: memoryview(np.asarray(batch).data)[2:],
    lambda batch: torch.as_tensor(batch).detach().view(torch.uint8)[3],
]
"""Rows, strides, transposed, flat, one number, another library, memory, without gradients."""


@both
def test_parts_of_batches_can_be_kept(kind: str, engine: str) -> None:
    parts = []
    for place, batch in enumerate(loader_of(kind, engine, 100)):
        parts.append((place, cut := PARTS[place % len(PARTS)], cut(batch)))
        del batch
    for place, cut, found in parts:
        original = np.ascontiguousarray(np.broadcast_to(expected(place), (ROWS, WIDTH)))
        wanted = cut(original if kind == "Loader" else torch.from_numpy(original))
        assert np.array_equal(np.asarray(found), np.asarray(wanted)), f"of batch {place}"
