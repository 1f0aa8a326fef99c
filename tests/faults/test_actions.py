"""The actions for a failed sample."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption
from feedline.faults import Failure, Raise, Replace, Retry, Skip, Verdict
from feedline.faults.actions import action_of

chances = st.floats(0, 1, exclude_max=True)
seconds = st.floats(0, 1e308)


def failure(attempt: int = 1, index: Any = 7) -> Failure:
    return Failure(index=index, error=OSError("disk"), stage="fetch", attempt=attempt, worker=0)


def previous(index: int) -> int:
    return index - 1


def nothing(index: int) -> None:
    return None


def same(index: Any) -> Any:
    return np.int64(index)


# -- retry ---


@given(wait_s=seconds, longest_s=seconds, chance=chances, attempt=st.integers(1, 10**6 - 1))
def test_waits_grow_and_are_bounded(wait_s: float, longest_s: float, chance: float, attempt: int) -> None:
    retry = Retry(10**6, wait_s=min(wait_s, longest_s), longest_s=longest_s)
    this, next_ = (retry.verdict(failure(n), chance).wait_s for n in (attempt, attempt + 1))
    assert 0.5 * retry.wait_s <= this <= next_ <= 1.5 * longest_s


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"attempts": 1.5},
        {"attempts": True},
        {"wait_s": -0.1},
        {"wait_s": float("nan")},
        {"wait_s": "1"},
        {"longest_s": float("inf")},
        {"wait_s": 60},  # more than the longest
        {"then": "ignore"},
        {"then": "retry"},
        {"then": Retry(1)},
    ],
    ids=repr,
)
def test_invalid_retries_are_rejected(options: Any) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        Retry(**options)


# -- replace, skip ---


@pytest.mark.parametrize("by", [nothing, same])
def test_a_replacement_must_be_another_sample(by: Any) -> None:
    with pytest.raises(BadOption, match=r"returned .* for sample 7"):
        Replace(by).verdict(failure(), 0.5)


@pytest.mark.parametrize("action", [Replace(), Replace(previous), Retry(1, then=Replace(previous))])
def test_a_whole_batch_is_never_replaced(action: Any) -> None:
    batch = Failure(index=[1, 2], error=ValueError("shapes"), stage="collate", attempt=2, worker=0)
    assert action.verdict(batch, 0.5) == Verdict("raise")


def test_replace_by_must_be_callable() -> None:
    with pytest.raises(BadOption, match="by='next'"):
        Replace("next")  # type: ignore[arg-type]  # that is the point


# -- short forms ---


@pytest.mark.parametrize("value", ["ignore", "", None, OSError("x"), Verdict("skip"), [1], Raise, np.arange(3)])
def test_other_values_are_rejected(value: Any) -> None:
    with pytest.raises(BadOption, match="otherwise") as refused:
        action_of(value, "otherwise")
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("action", [Raise(), Skip(), Retry(2, "skip", 0.5, 1.0), Replace(), Replace(previous)])
def test_actions_are_values(action: Any) -> None:
    again = pickle.loads(pickle.dumps(action))
    assert again == action
    assert hash(again) == hash(action)
