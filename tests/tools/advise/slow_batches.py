"""Datasets and loaders whose batches take long to collate or to send, or hold more than they need."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import feedline
from tests.tools.advise.fixes import WORKER, case, changed, in_loop, names_for, parts_of
from tests.tools.advise.slow_datasets import Healthy


def _split(code: str, one: Any) -> Any:
    """Split the texts of a batch, and order them as the default collate function does: word by word."""
    found = []
    for text in one["words"]:
        names = names_for(text=text)
        exec(parts_of(code)["loop"], names)
        found.append(names["texts"])
    return {"words": [list(words) for words in zip(*found, strict=True)]}


@case("slow-collate", fixed=changed, after=_split, gain=WORKER)
class Objects(Healthy):
    def __init__(self) -> None:
        self.words = [[f"word {index} {number}" for number in range(300)] for index in range(200)]

    def __getitem__(self, index: int) -> Any:
        return {"words": self.words[index % 200]}


@case("slow-collate", fixed=changed, after=lambda code, one: {"values": list(one["values"].T)}, gain=WORKER)
class Numbers(Healthy):
    """Has lists of numbers where an array would do."""

    def __init__(self) -> None:
        self.lists = np.random.default_rng(0).random((200, 300)).tolist()

    def __getitem__(self, index: int) -> Any:
        return {"values": self.lists[index % 200]}


@case("slow-collate")
class ManyFields(Healthy):
    """Has a separate field for each number."""

    def __getitem__(self, index: int) -> Any:
        return {f"column {number}": float(index + number) for number in range(200)}


class Wide(Healthy):
    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).random((100, 1024), np.float32)


def _by_value(samples: list[Any]) -> NDArray[Any]:
    return np.array([[float(value) for value in sample["x"]] for sample in samples])


@case("slow-collate")
def slow_collate() -> Any:
    return feedline.DataLoader(Wide(), batch_size=128, collate_fn=_by_value)


def _as_by_default(samples: list[Any]) -> Any:
    """Do what the default does, value by value."""
    rows = [[float(value) for value in sample["x"]] for sample in samples]
    return {"x": torch.tensor(rows, dtype=torch.float32), "y": torch.tensor([sample["y"] for sample in samples])}


@case(
    "slow-collate",
    of=Wide,
    only_slow={"collate_fn": _as_by_default},
    gain=(WORKER[0], {**WORKER[1], "batch_size": 128}),
)
def needless_collate() -> Any:
    return feedline.DataLoader(Wide(), batch_size=128, collate_fn=_as_by_default)


@case("floats", fixed=lambda code, _: Bytes(), after=in_loop, gain=WORKER)
class Floats(Healthy):
    def __init__(self) -> None:
        self.images = np.random.default_rng(0).integers(0, 256, (20, 3, 96, 96), np.uint8)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.images[index % 20]).float() / 255


class Bytes(Floats):
    """The fix."""

    def __getitem__(self, index: int) -> Any:
        return self.images[index % 20]


@case(
    "padding",
    of=lambda: Lengths(320),
    only_slow={"collate_fn": feedline.collate.pad(lengths=False), "sampler": range(640), "batch_size": 32},
    before=lambda dataset: sorted(len(dataset[index]) for index in range(len(dataset))),
    after=lambda code, one: (one != 0).sum(axis=1).tolist(),
    same=lambda before, after: np.testing.assert_equal(sorted(length for one in after for length in one), before),
)
class Lengths(Healthy):
    def __init__(self, length: int = 5000) -> None:
        self.length = length

    def __getitem__(self, index: int) -> Any:
        return np.full(8 + (index * 7919) % 503 ** (1 + index % 2), 0.5, np.float32)[:2000]
