"""Dropping samples."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.collate import default, drop_none, pad
from feedline.errors import BadOption, EmptyBatch


def is_odd(sample: int) -> bool:
    return sample % 2 == 1


def count_and_sum(samples: list[int]) -> tuple[int, int]:
    return len(samples), sum(samples)


@given(st.lists(st.none() | st.integers(-100, 100)))
def test_inner_receives_the_remaining_samples_in_order(samples: list[int | None]) -> None:
    kept = [sample for sample in samples if sample is not None]
    if kept:
        assert drop_none(tuple)(samples) == tuple(kept)
        assert np.array_equal(drop_none()(samples), default(kept))
    else:
        with pytest.raises(EmptyBatch):
            drop_none(tuple)(samples)


def test_samples_that_a_predicate_rejects_are_dropped() -> None:
    assert drop_none(count_and_sum, drop=is_odd)([1, None, 2, 3, 4]) == (2, 6)


def test_an_inner_collate_function_is_bound_too() -> None:
    samples = [np.ones(1), None, np.ones(3)]
    padded, lengths = drop_none(pad()).bound_to("torch")(samples)
    assert isinstance(padded, torch.Tensor)
    assert lengths.tolist() == [1, 3]


def test_the_error_for_an_empty_batch_says_why() -> None:
    with pytest.raises(EmptyBatch, match=r"batch of 3 samples: 3 are None\. .*larger batch.*sampler"):
        drop_none()([None, None, None])
    with pytest.raises(EmptyBatch, match="1 are None and `drop` rejected 2"):
        drop_none(drop=is_odd)([1, None, 3])


@pytest.mark.parametrize("inner", [None, 5, [1, None]])
def test_rejects_an_inner_function_that_is_not_callable(inner: Any) -> None:
    with pytest.raises(BadOption, match="not a collate function"):
        drop_none(inner)


def test_it_can_be_pickled_bound_or_not() -> None:
    for collate in (drop_none(drop=is_odd), drop_none(drop=is_odd).bound_to("torch")):
        copy = pickle.loads(pickle.dumps(collate))
        assert copy([1, 2, None]).tolist() == [2]
        assert type(copy([2])) is type(collate([2]))
