"""The fetcher turns indices into a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.datasets import ArrayDataset
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.scope import Scope
from feedline.types import DatasetKind, IndexBlock
from feedline.workers.fetch import Fetcher, fetcher_for
from tests.workers.fetch.streams import Numbers


def make(dataset: Any, *, streams: bool = False, collate: Any = list, **options: Any) -> Fetcher:
    kind = DatasetKind.ITERABLE if streams else DatasetKind.MAP
    spec = WorkerSpec(dataset, kind, collate, NumpyFramework(), worker_count=0, base_seed=0, **options)
    return fetcher_for(dataset, spec, Scope())


def block(*indices: int) -> IndexBlock:
    return IndexBlock(np.array(indices, np.int64))


class Echo:
    """The sample is the index."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> Any:
        return index


class Bulk(Echo):
    def __getitems__(self, indices: Any) -> list[Any]:
        return ["bulk", indices]


class NoBulk(Echo):
    __getitems__ = None


# -- map-style ---


@pytest.mark.parametrize("indices", [[3, 1], (2, 2), ["a", ("b", 1)], [np.int64(4)], [], "xyz"])
def test_samples_are_requested_one_by_one_with_the_samplers_own_index_objects(indices: Any) -> None:
    fetched = make(Echo())(indices)
    assert fetched == list(indices)
    assert all(mine is theirs for mine, theirs in zip(fetched, indices, strict=True))


def test_getitems_is_used_where_the_dataset_has_it() -> None:
    assert make(Bulk())([1, 2]) == ["bulk", [1, 2]]
    assert make(Bulk())(block(1, 2)) == ["bulk", [1, 2]]
    assert make(NoBulk())([1, 2]) == [1, 2]


# -- arrays ---

X = np.arange(30.0).reshape(10, 3)
TABLE = ArrayDataset({"x": X, "y": np.arange(10)})


def sample_by_sample(indices: Any) -> Any:
    return default([TABLE[index] for index in indices])


def outcome(make_batch: Callable[[Any], Any], indices: Any) -> Any:
    """Return the batch as lists, or the type and text of the error."""
    try:
        batch = make_batch(indices)
    except Exception as exc:
        return type(exc), str(exc)
    return {name: column.tolist() for name, column in batch.items()}


@pytest.mark.parametrize(
    "indices",
    [
        [],
        np.array([], np.int64),
        [[0, 1], [2]],
        [[0, 1], [2, 3]],
        [2**63],
        [None],
        ["x"],
        [1.0],
        [slice(2)],
        [True, False],
        [True],
    ],
)
def test_unusual_indices_behave_as_they_do_sample_by_sample(indices: Any) -> None:
    assert outcome(make(TABLE, collate=default), indices) == outcome(sample_by_sample, indices)


# -- streams ---


def take_all(fetch: Fetcher, size: int) -> list[Any]:
    batches = []
    with pytest.raises(StopIteration):  # noqa: PT012  the last of many calls raises
        while True:
            batches.append(fetch(size))
    return batches


@given(st.integers(0, 20), st.integers(1, 7), st.booleans())
def test_a_stream_is_cut_into_batches(count: int, size: int, drop_last: bool) -> None:
    batches = take_all(make(Numbers(count), streams=True, drop_last=drop_last), size)
    numbers = list(range(count // size * size if drop_last else count))
    assert batches == [numbers[start : start + size] for start in range(0, len(numbers), size)]


def test_next_is_not_called_again_after_a_stream_ended() -> None:
    class Restless:
        """Continues after StopIteration, which iterators must not do."""

        def __init__(self) -> None:
            self.calls = 0

        def __iter__(self) -> Restless:
            return self

        def __next__(self) -> int:
            self.calls += 1
            if self.calls == 3:
                raise StopIteration
            return self.calls

    restless = Restless()
    fetch = make(restless, streams=True)
    assert fetch(5) == [1, 2]
    with pytest.raises(StopIteration):
        fetch(5)
    assert restless.calls == 3


def test_an_error_in_the_middle_of_a_batch_loses_that_batch_only() -> None:
    class Hiccup:
        def __init__(self) -> None:
            self.number = 0

        def __iter__(self) -> Hiccup:
            return self

        def __next__(self) -> int:
            self.number += 1
            if self.number == 2:
                raise OSError("dropped")
            return self.number

    fetch = make(Hiccup(), streams=True)
    with pytest.raises(OSError, match="dropped"):
        fetch(3)
    assert fetch(2) == [3, 4]
