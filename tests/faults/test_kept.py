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
from tests.faults.loaders import LOADERS, make

pytestmark = pytest.mark.sample(15)

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


@pytest.fixture(params=LOADERS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["process", "thread"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def loader_of(kind: str, engine: str, count: int = 16, **options: Any) -> Any:
    """Return a loader that delivers `count` batches."""
    dataset = options.pop("dataset", None) or Marked(count * ROWS)
    return make(kind, dataset, ROWS, workers=2, engine=engine, **options)


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


@pytest.mark.parametrize("forked", ["before", "in the middle"])
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


@pytest.mark.parametrize("end", ["close", "delete", "collect"])
@pytest.mark.parametrize("persistent", [False, True])
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


@pytest.mark.parametrize("memory", ["arena", "portable"])
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


PARTS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda batch: batch[1:3],
    "strides": lambda batch: batch[:, ::-1] if isinstance(batch, np.ndarray) else batch[:, ::7],
    "transposed": lambda batch: batch.T,
    "flat": lambda batch: batch.reshape(-1)[5:],
    "one number": lambda batch: batch[2:3, 7:8],
    "other library": lambda batch: torch.from_numpy(batch)[1] if isinstance(batch, np.ndarray) else batch.numpy()[1],
    "memoryview": lambda batch: memoryview(np.asarray(batch).data)[2:],
    "detached": lambda batch: torch.as_tensor(batch).detach().view(torch.uint8)[3],
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_batch_can_be_kept(kind: str, engine: str, part: str) -> None:
    cut = PARTS[part]
    parts = []
    for place, batch in enumerate(loader_of(kind, engine, 100)):
        if place % 20 == 2:
            parts.append((place, cut(batch)))
        del batch
    for place, found in parts:
        original = np.ascontiguousarray(np.broadcast_to(expected(place), (ROWS, WIDTH)))
        wanted = cut(original if kind == "Loader" else torch.from_numpy(original))
        assert np.array_equal(np.asarray(found), np.asarray(wanted)), f"of batch {place}"


# -- the budget ---
