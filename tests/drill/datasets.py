"""The datasets of the drill. Importable, so that spawned workers find them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

import feedline
from tests.drill.troubles import Troubles

CONTENTS = ("numbers", "rows", "ragged", "dicts", "nested")
"""Kinds of samples."""

NOISE = "noise"
"""The random field of a sample, which depends on the loader's seed and not only on the index."""

_LARGE_EVERY = 50
_LARGE_VALUES = 60_000


def make_sample(content: str, index: int) -> Any:
    """Make the sample `index`; except for its noise, it is the same every time."""
    if content == "numbers":
        return index
    if content == "rows":
        return np.arange(1, 25) * (index + 1)
    if content == "ragged":  # some are too large for a slot made for the others
        count = _LARGE_VALUES if index % _LARGE_EVERY == 7 else 1 + index * 7919 % 3000
        return np.arange(count, dtype=np.int32) + index
    if content == "dicts":
        picture = np.full((3, 8, 8), index, np.float32)
        return {"index": index, "picture": picture, NOISE: float(feedline.rng().random())}
    return f"sample {index}", {"pair": [index, index * 0.5], "text": "ab" * (index % 40)}


def as_list(samples: list[Any]) -> list[Any]:
    """Do not stack samples of different sizes."""
    return samples


class Items(Dataset[Any]):
    """A map-style dataset in which some samples cause trouble."""

    def __init__(self, content: str, size: int, troubles: Troubles) -> None:
        self.content = content
        self.size = size
        self.troubles = troubles

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.troubles.meet(index)
        return make_sample(self.content, index)


class BulkItems(Items):
    """The same, but makes the samples of a batch in one call."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]


class Cursor:
    """Iterates over every `step`-th sample of a stream; a sample that raises does not end it."""

    def __init__(self, stream: Stream, first: int, step: int) -> None:
        self.stream = stream
        self.next = first
        self.step = step

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Any:
        index = self.next
        if index >= self.stream.size:
            raise StopIteration
        self.next += self.step
        self.stream.troubles.meet(index)
        return make_sample(self.stream.content, index)


class StatefulCursor(Cursor):
    """The same, and it can save and restore its position."""

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class Stream:
    """An iterable dataset that leaves splitting to the loader."""

    cursor: type[Cursor] = Cursor

    def __init__(self, content: str, size: int, troubles: Troubles) -> None:
        self.content = content
        self.size = size
        self.troubles = troubles

    def __iter__(self) -> Iterator[Any]:
        return self.cursor(self, 0, 1)


class StatefulStream(Stream):
    """The same, and its iterator has a state."""

    cursor = StatefulCursor


class TorchStream(Stream, IterableDataset[Any]):
    """The same under torch's name for iterable datasets."""


class StatefulTorchStream(TorchStream):
    """The same, and its iterator has a state."""

    cursor = StatefulCursor


class SplitStream(TorchStream):
    """An iterable dataset that splits itself over the workers, as usual with torch."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return self.cursor(self, 0, 1) if info is None else self.cursor(self, info.id, info.num_workers)


class StatefulSplitStream(SplitStream):
    """The same, and its iterator has a state."""

    cursor = StatefulCursor


def gathered(size: int, *, for_torch: bool) -> Any:
    """Return a dataset that consists of arrays: its batches are gathered in one step."""
    rows = np.stack([make_sample("rows", index) for index in range(size)])
    return TensorDataset(torch.from_numpy(rows)) if for_torch else {"rows": rows}
