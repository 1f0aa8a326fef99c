"""Recognition of map-style and iterable datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from feedline.datasets.framework.kind import kind_of
from feedline.errors import BadOption
from feedline.types import DatasetKind


class Stream:
    def __iter__(self) -> Iterator[int]:
        yield 1


class TorchStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1

    def __len__(self) -> int:
        return 1


class Endless:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [
        ([1], DatasetKind.MAP),
        (torch.zeros(3), DatasetKind.MAP),
        (torch.utils.data.TensorDataset(torch.zeros(3)), DatasetKind.MAP),
        (Stream(), DatasetKind.ITERABLE),
        (TorchStream(), DatasetKind.ITERABLE),
    ],
)
def test_kinds(dataset: Any, kind: DatasetKind) -> None:
    assert kind_of(dataset, "dataset") is kind


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        (3, "that=3"),
        ("out.lmdb", "that='out.lmdb'"),
        (Path("out"), "PosixPath"),
        (Endless(), "Endless.*__len__"),
        (iter([1]), "list_iterator"),
        ((number for number in [1]), "generator"),
    ],
)
def test_rejects_objects_that_are_not_datasets(dataset: Any, named: str) -> None:
    with pytest.raises(BadOption, match=named):
        kind_of(dataset, "that")
