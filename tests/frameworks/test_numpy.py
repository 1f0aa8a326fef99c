"""NumPy as a framework."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from feedline import collate
from feedline.abc import Columnar
from feedline.frameworks.numpy import NumpyFramework
from feedline.types import WorkerIdentity
from tests.memory.tasks import slot, task_in

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


def test_gathered_rows_keep_the_form_of_the_table() -> None:
    x, y = np.arange(12.0).reshape(4, 3), np.arange(4)
    assert np.array_equal(gather(x, 1, -1), x[[1, -1]])
    batch = gather({"x": x, "y": y}, 3, 0)
    assert (type(batch), list(batch)) == (dict, ["x", "y"])
    assert np.array_equal(batch["y"], [3, 0])
    assert type(gather((x, y), 2)) is tuple


@pytest.mark.parametrize("index", [4, -5, 2**40])
def test_an_index_out_of_range_is_an_error(index: int) -> None:
    for rows in (np.arange(4), np.zeros((4, 1 << 14))):
        with pytest.raises(IndexError, match="out of"):
            gather(rows, 0, index)


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


def test_a_large_batch_is_made_in_the_slot() -> None:
    with task_in(slot(1 << 18)) as writer:
        batch = gather({"x": np.full((4, 1 << 13), [[0], [1], [2], [3]], float), "y": np.arange(4)}, 1, 2)
    assert all(np.shares_memory(part, writer.view) for part in batch.values())
    assert batch["x"][:, 0].tolist() == [1, 2]


def test_threads_do_not_reseed_the_programs_generators() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    FRAMEWORK.open_worker(WorkerIdentity(0, 1, 40, [1], threaded=True), 0, None)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]
