"""Fields that a rank does not need are dropped in the worker, and everything else stays as it was."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import feedline
from feedline import DataLoader, Loader
from feedline.errors import BadOption, CollateError

N = 10


class Rows(Dataset[dict[str, Any]]):
    """Samples with a random number."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": index, "noise": float(feedline.rng().random()), "text": f"row {index}"}


class Stream(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (Rows()[index] for index in range(N))


class Pairs(Dataset[tuple[int, str]]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, str]:
        return index, str(index)


class Unread(Dataset[int]):
    """Fails if a sample is read."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        raise AssertionError("a sample was read")


class Mode:
    """One kind of loader, with its own name for the number of workers."""

    def __init__(self, kind: Any, workers: str) -> None:
        self.make, self._workers = kind, workers

    def __call__(self, dataset: Any, count: int = 0, **options: Any) -> Any:
        return self.make(dataset, **{self._workers: count}, **options)


MODES = [Mode(DataLoader, "num_workers"), Mode(Loader, "workers")]


def only_x(batch: dict[str, Any]) -> Any:
    return batch["x"]


def first_of_all(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"first": samples[0]["x"], "noise": [sample["noise"] for sample in samples]}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value


@pytest.mark.parametrize("make", MODES, ids=["DataLoader", "Loader"])
@pytest.mark.parametrize("dataset", [Rows(), Stream()], ids=["map", "stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_other_fields_are_as_they_were(make: Mode, dataset: Any, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 4, "seed": 3, "shard": True if isinstance(dataset, Stream) else None}
    whole = [plain(batch) for batch in make(dataset, **options)]
    some = make(dataset, workers, fields=("noise", "x"), engine="thread" if workers else "auto", **options)
    assert [plain(batch) for batch in some] == [{"noise": each["noise"], "x": each["x"]} for each in whole]
    by_function = make(dataset, fields=only_x, **options)
    assert [plain(batch) for batch in by_function] == [each["x"] for each in whole]


@pytest.mark.parametrize("make", MODES, ids=["DataLoader", "Loader"])
def test_a_collate_function_of_the_user_gets_all_fields(make: Mode) -> None:
    loader = make(Rows(), batch_size=4, seed=3, collate_fn=first_of_all, fields="first")
    assert [plain(batch) for batch in loader] == [{"first": 0}, {"first": 4}, {"first": 8}]
    singles = make(Rows(), batch_size=None, fields=["x"])
    assert [plain(sample) for sample in singles] == [{"x": index} for index in range(N)]


@pytest.mark.parametrize("make", MODES, ids=["DataLoader", "Loader"])
def test_tuples_have_numbers(make: Mode) -> None:
    assert [plain(batch) for batch in make(Pairs(), batch_size=5, fields=[0])] == [[[*range(5)]], [[*range(5, N)]]]


@pytest.mark.parametrize("make", MODES, ids=["DataLoader", "Loader"])
def test_a_rank_that_needs_nothing_reads_nothing_and_has_the_same_state(make: Mode) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3}
    empty = make(Unread(), 2, fields=(), device=None, **options)
    whole = make(Rows(), **options)
    for _ in range(2):
        batches, others = iter(empty), iter(whole)
        for _ in range(3):
            assert next(batches) == {}
            next(others)
            ours, theirs = empty.state_dict(), whole.state_dict()
            unlike = {name for name in theirs if ours.get(name) != theirs[name]} - {"dataset", "checksum"}
            assert not unlike
        assert next(batches, None) is next(others, None) is None
    assert len(empty) == len(whole)


def test_a_stream_is_read_even_if_nothing_is_needed() -> None:
    loader: Any = Loader(Stream(), 4, fields=())
    assert list(loader) == [{}] * 3


@pytest.mark.parametrize("fields", [3.5, ["x", 1], ["x", "x"], {"x"}, [True]])
def test_bad_fields_are_refused(fields: Any) -> None:
    with pytest.raises(BadOption, match="fields="):
        Loader(Rows(), 2, fields=fields)


@pytest.mark.parametrize(("dataset", "fields"), [(Rows(), ["y"]), (Rows(), [0]), (Pairs(), ["x"]), (Pairs(), [2])])
def test_missing_fields_are_named(dataset: Any, fields: Any) -> None:
    with pytest.raises(CollateError, match="do not exist in a"):
        next(iter(DataLoader(dataset, 2, fields=fields)))


def test_persistent_workers_are_kept() -> None:
    loader: Any = Loader(Rows(), 4, fields=("x",), workers=1, engine="thread", persistent=True)
    first = iter(loader)
    list(first)
    assert iter(loader) is first
    loader.close()
    assert functools.reduce(lambda total, batch: total + len(batch["x"]), loader, 0) == N
    loader.close()
