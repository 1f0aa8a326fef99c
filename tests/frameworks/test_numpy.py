"""NumPy as a framework."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import feedline
from feedline import collate
from feedline.abc import Columnar, memory
from feedline.datasets import ArrayDataset
from feedline.errors import CollateError
from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.codec import SlotWriter
from feedline.memory.reading import Views
from feedline.types import WorkerIdentity

FRAMEWORK = NumpyFramework()


class Table(Columnar):
    def __init__(self, table: Any) -> None:
        self.table = table

    def columns(self) -> Any:
        return self.table


def gather(table: Any, *indices: int) -> Any:
    take = FRAMEWORK.gather_for(Table(table), collate.default)
    assert take is not None
    return take(np.array(indices, np.int64))


def test_tensor_types_that_numpy_lacks_are_reported_with_their_field() -> None:
    rows = torch.zeros(4, 2, dtype=torch.bfloat16)
    for dataset, field in ((ArrayDataset({"x": rows, "y": np.arange(4)}), " in field 'x'"), (ArrayDataset(rows), "")):
        with pytest.raises(CollateError, match=f"Tensor of torch.bfloat16{field}, which cannot"):
            next(iter(feedline.Loader(dataset, 2)))


def test_gathered_rows_keep_the_form_of_the_table() -> None:
    x, y = np.arange(12.0).reshape(4, 3), np.arange(4)
    assert np.array_equal(gather(x, 1, -1), x[[1, -1]])
    batch = gather({"x": x, "y": y}, 3, 0)
    assert (type(batch), list(batch)) == (dict, ["x", "y"])
    assert np.array_equal(batch["y"], [3, 0])
    assert type(gather((x, y), 2)) is tuple


@pytest.mark.parametrize("index", [4, -5, 2**40])
def test_an_index_out_of_range_is_an_error(index: int) -> None:
    with pytest.raises(IndexError, match="out of range for a dataset of 4 samples"):
        gather(np.arange(4), 0, index)


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "b"]),
        np.array([None, None]),
        np.zeros(2, [("a", int)]),
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(2, ">i4"),
    ],
)
def test_unusual_arrays_are_not_vectorised(array: NDArray[Any]) -> None:
    for table in (array, (np.zeros(2), array), {"a": np.zeros(2), "b": array}):
        assert FRAMEWORK.gather_for(Table(table), collate.default) is None


def test_only_columns_and_the_default_collate_function_are_vectorised() -> None:
    assert FRAMEWORK.gather_for(Table(np.zeros(3)), list) is None
    assert FRAMEWORK.gather_for([1, 2], collate.default) is None
    assert FRAMEWORK.gather_for(Table(None), collate.default) is None
    assert FRAMEWORK.gather_for(ArrayDataset(np.zeros(3)), collate.default) is not None


def test_a_batch_is_made_in_the_slot() -> None:
    backing = np.zeros(1 << 16, np.uint8)
    memory.set_current(SlotWriter(backing, backing.__array_interface__["data"][0]))
    try:
        batch = gather({"x": np.arange(12.0).reshape(4, 3), "y": np.arange(4)}, 1, 2)
    finally:
        memory.set_current(None)
    assert all(np.shares_memory(part, backing) for part in batch.values())
    assert batch["x"].tolist() == [[3, 4, 5], [6, 7, 8]]


def test_a_batch_is_a_copy() -> None:
    x = np.zeros((3, 2))
    gather(x, 0, 1, 2)[:] = 5
    assert not x.any()


@pytest.mark.usefixtures("generators_as_they_were")
def test_workers_draw_different_numbers_determined_by_the_seed() -> None:
    drawn = []
    for number in (0, 1, 0):
        FRAMEWORK.open_worker(WorkerIdentity(number, 2, 40 + number, [1]), 0, None)
        drawn.append((random.random(), np.random.rand()))
    assert drawn[0] == drawn[2]
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def test_threads_do_not_reseed_the_programs_generators() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    FRAMEWORK.open_worker(WorkerIdentity(0, 1, 40, [1], threaded=True), 0, None)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]


def test_batches_are_always_pickled() -> None:
    assert FRAMEWORK.describe({"x": np.zeros(3)}, SlotWriter(np.zeros(8, np.uint8), 0)) is None
    with pytest.raises(NotImplementedError):
        FRAMEWORK.rebuild(None, Views(np.zeros(8, np.uint8)))
