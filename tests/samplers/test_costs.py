"""Costs: in every form that users have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline.errors import BadOption
from feedline.samplers import attention_cost
from feedline.samplers.costs import SampleCosts


@pytest.mark.parametrize(
    ("costs", "options"),
    [
        ([1, 5, 2], {}),
        (np.array([1, 5, 2], np.uint8), {}),
        (np.array([1.0, 5.0, 2.0], np.float32), {}),
        (lambda index: [1, 5, 2][index], {"num_samples": 3}),
        (lambda indices: np.array([1, 5, 2])[indices], {"num_samples": 3}),
    ],
)
def test_costs_in_any_form_are_equal(costs: Any, options: dict[str, Any]) -> None:
    found = SampleCosts(costs, **options)
    assert found.at(np.array([2, 0, 1])).tolist() == [[2], [1], [5]]
    assert (found.count, found.kinds) == (3, 1)


def test_a_tensor_holds_costs() -> None:
    torch = pytest.importorskip("torch")
    assert SampleCosts(torch.tensor([1, 5])).at(np.array([1])).tolist() == [[5]]


@pytest.mark.parametrize(
    ("costs", "options"),
    [
        (np.array([[1, 9], [2, 8]]), {}),
        ({"text": [1, 2], "images": [9, 8]}, {}),
        (lambda index: (1, 9) if index == 0 else (2, 8), {"num_samples": 2}),
    ],
)
def test_several_kinds_of_cost(costs: Any, options: dict[str, Any]) -> None:
    assert SampleCosts(costs, **options).at(np.array([1, 0])).tolist() == [[2, 8], [1, 9]]


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ([], "empty"),
        ({}, "empty dict"),
        ([1, -2], "sample 1: -2 is not a cost"),
        ([1.0, float("nan")], "sample 1: nan"),
        ([1.0, float("inf")], "sample 1: inf"),
        (["a", "b"], "must hold numbers"),
        (np.ones((2, 2, 2)), "shape"),
        ({"text": [1, 2], "images": [1]}, "'images': 1"),
        (len, "num_samples"),
    ],
)
def test_rejects_costs(costs: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        SampleCosts(costs)


def test_rejects_another_number_of_samples() -> None:
    with pytest.raises(BadOption, match="3 values, but num_samples=4"):
        SampleCosts([1, 2, 3], 4)


def test_a_function_that_raises_is_shown_with_its_samples() -> None:
    def cost(index: int) -> float:
        return 1 / (index - 3)

    costs = SampleCosts(lambda index: max(cost(index), 0.0), 10)
    with pytest.raises(ZeroDivisionError) as caught:
        costs.at(np.array([2, 3]))
    assert "[2, 3]" in str(getattr(caught.value, "__notes__", ""))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda index: 1.0 - index, "sample 5: -4.0"),
        (lambda index: [[1]], "shape"),
        (lambda index: "long", "must hold numbers"),
    ],
)
def test_rejects_what_a_function_returns(function: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        SampleCosts(function, 10).at(np.array([5]))


def test_attention_cost_of_rows_is_that_of_their_documents() -> None:
    alone = attention_cost([3, 4], linear=10)
    assert alone.tolist() == [9 + 30, 16 + 40]
    assert attention_cost([3, 4], linear=10, documents=True) == alone.sum()


def test_the_mean_is_that_of_the_kind_nearest_to_its_limit() -> None:
    costs = SampleCosts(np.array([[1, 10], [3, 10]]))
    assert costs.relative_mean((4, 100)) == 0.5
    assert costs.relative_mean((4, 10)) == 1
