"""The indices of a batch, in whatever form the sampler yields them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.delivery.machine.batch_indices import as_list, count_of, with_item
from feedline.types import IndexBlock

FORMS: dict[str, Callable[[list[int]], Any]] = {
    "block": lambda numbers: IndexBlock(np.array(numbers, np.int64)),
    "list": list,
    "tuple": tuple,
    "array": lambda numbers: np.array(numbers, np.int64),
    "tensor": lambda numbers: torch.tensor(numbers, dtype=torch.int64),
    "range": lambda numbers: range(len(numbers)),
    "dict": lambda numbers: dict.fromkeys(range(len(numbers))),
}
numbers_of = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=8)
SINGLES = [7, "cat", ("cat", 3), [1, 2], np.int64(4), None, frozenset({1}), {"id": 2}]


@given(numbers_of, st.sampled_from(["block", "list", "tuple", "array", "tensor"]))
def test_indices_of_a_batch_are_listed_and_counted(numbers: list[int], form: str) -> None:
    batch = FORMS[form](numbers)
    assert [int(index) for index in as_list(batch)] == numbers
    assert count_of(batch) == len(numbers)


@pytest.mark.parametrize("index", SINGLES, ids=repr)
def test_without_batching_any_object_is_one_index(index: Any) -> None:
    (only,) = as_list(index, batched=False)
    assert only is index
    assert count_of(index, batched=False) == 1
    assert with_item(index, 0, "other", batched=False) == "other"


@pytest.mark.parametrize("index", [7, np.int64(4), None, torch.tensor(3)], ids=repr)
def test_objects_that_are_not_iterable_count_as_one_sample(index: Any) -> None:
    (only,) = as_list(index)
    assert only is index
    assert count_of(index) == 1
    assert with_item(index, 0, 9) == [9]


@given(numbers_of, st.sampled_from(list(FORMS)), st.data())
def test_with_item_replaces_one_index_and_leaves_the_original_alone(
    numbers: list[int], form: str, data: st.DataObject
) -> None:
    batch = FORMS[form](numbers)
    before = [int(index) for index in as_list(batch)]
    place = data.draw(st.integers(0, len(numbers) - 1))
    other = data.draw(st.sampled_from([5, "cat", ("cat", 3), None]))
    changed = as_list(with_item(batch, place, other))
    assert changed[place] == other
    assert [int(index) for at, index in enumerate(changed) if at != place] == before[:place] + before[place + 1 :]
    assert [int(index) for index in as_list(batch)] == before


def test_with_item_keeps_a_block_if_the_new_index_is_an_integer() -> None:
    block = IndexBlock(np.arange(3))
    changed = with_item(block, 1, 9)
    assert type(changed) is IndexBlock
    assert changed.array.tolist() == [0, 9, 2]
    assert with_item(block, 1, "cat") == [0, "cat", 2]
    assert as_list(with_item(block, 1, np.int64(9))) == [0, 9, 2]
