"""Samplers that reuse one object for all batches: each batch has the contents at the time it was yielded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import feedline
from feedline import DataLoader
from feedline.types import Key
from tests.holding import Hold, pass_gate

N = 80
BATCH = 4
LATE = 2 * BATCH + 1

ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "thread": {"num_workers": 2, "engine": "thread"},
    "process": {"num_workers": 2, "multiprocessing_context": "fork"},
}


class Squares(Dataset[Any]):
    """Takes indices in any form; sample LATE waits at a gate, so that pending work moves to other workers."""

    def __init__(self, gate: Path | None = None, *, bad: frozenset[int] = frozenset()) -> None:
        self.gate = gate
        self.bad = bad

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: Any) -> Any:
        number = int(index["n"] if isinstance(index, dict) else np.asarray(index).reshape(-1)[0])
        if self.gate is not None and number == LATE:
            pass_gate(self.gate)
        if number in self.bad:
            raise ValueError(f"sample {number}")
        return number


class Batches:
    """A batch sampler with one list, array or tensor for all batches."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __len__(self) -> int:
        return N // BATCH

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, N, BATCH):
            for place in range(BATCH):
                self._put(place, start + place)
            yield self.buffer

    def _put(self, place: int, number: int) -> None:
        self.buffer[place] = number


class Boxes(Batches):
    """The same, with indices that are lists themselves."""

    def _put(self, place: int, number: int) -> None:
        self.buffer[place][0] = number


BUFFERS: dict[str, Callable[[], Batches]] = {
    "list": lambda: Batches([0] * BATCH),
    "array": lambda: Batches(np.zeros(BATCH, np.int64)),
    "tensor": lambda: Batches(torch.zeros(BATCH, dtype=torch.int64)),
    "lists": lambda: Boxes([[0] for _ in range(BATCH)]),
}


def flat(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in np.asarray(batch).reshape(-1)]


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    return Hold(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("engine", "buffer"), [("thread", "list"), ("process", "array"), ("thread", "tensor"), ("process", "lists")]
)
def test_batches_keep_the_contents_they_were_yielded_with(buffer: str, engine: str, hold: Hold) -> None:
    loader = DataLoader(Squares(hold.gate), batch_sampler=BUFFERS[buffer](), seed=1, **ENGINES[engine])
    assert flat(loader) == list(range(N))
    assert hold.moved > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_faults_and_quarantine_name_the_right_samples(engine: str, hold: Hold) -> None:
    bad = frozenset({6, 41})
    loader = DataLoader(
        Squares(None if engine == "inline" else hold.gate, bad=bad),
        batch_sampler=Batches([0] * BATCH),
        on_error="skip",
        seed=1,
        **ENGINES[engine],
    )
    assert flat(loader) == [number for number in range(N) if number not in bad]
    assert [fault.index for fault in loader.faults] == sorted(bad)
    assert flat(loader) == [number for number in range(N) if number not in bad]
    assert len(loader.faults) == len(bad), "quarantined samples are not tried again"


class OwnBatches(feedline.abc.BatchSampler):
    """A feedline batch sampler that fills the same array again."""

    def __init__(self) -> None:
        self.buffer = np.zeros(BATCH, np.int64)

    def size(self) -> int:
        return N // BATCH

    def batch(self, number: int, key: Key) -> Any:
        self.buffer[:] = np.arange(number * BATCH, (number + 1) * BATCH)
        return self.buffer


class OwnSampler(feedline.abc.Sampler):
    def __init__(self, count: int) -> None:
        self.count = count
        self.buffer = np.zeros(1 << 14, np.int64)

    def size(self) -> int:
        return self.count

    def at(self, places: Any, key: Key) -> Any:
        self.buffer[: len(places)] = places
        return self.buffer[: len(places)]


def test_feedline_samplers_may_reuse_their_arrays() -> None:
    loader = DataLoader(Squares(), batch_sampler=OwnBatches(), num_workers=2, engine="thread")
    assert flat(loader) == list(range(N))
    count = 3000  # more than one block
    numbers: Any = range(count)
    loader = DataLoader(numbers, 8, sampler=OwnSampler(count), num_workers=2, engine="thread", prefetch_factor=64)
    assert flat(loader) == list(range(count))
