"""Failures, faults and verdicts about samples."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.abc.faults import (
    ACTIONS,
    MESSAGE_LENGTH,
    NEIGHBOUR,
    Failure,
    Fault,
    Verdict,
)
from feedline.errors import BadOption, BadState
from tests.names import named
from tests.types.test_indices import indices, through_json, through_pickle

numbers = st.integers(0, 10**6)
faults = st.builds(
    Fault,
    index=indices,
    error=st.sampled_from(["OSError", "PIL.UnidentifiedImageError"]),
    message=st.text(max_size=2 * MESSAGE_LENGTH),
    stage=st.sampled_from(["fetch", "transform", "collate", "worker"]),
    worker=st.none() | numbers,
    attempt=st.integers(1, 9),
    action=st.sampled_from(ACTIONS),
    time=st.floats(0, 4e9),
    epoch=numbers,
    replacement=indices,
)

USUAL = Fault(7, "OSError", "disk", "fetch", 0, 1, "skip", 1.7e9)


def failure(error: BaseException, index: Any = 7) -> Failure:
    return Failure(index=index, error=error, stage="fetch", attempt=2, worker=3)


# -- verdicts ---


@pytest.mark.parametrize("again", [through_pickle, copy.copy, copy.deepcopy])
def test_neighbour_stays_a_singleton_when_copied_or_pickled(again: Any) -> None:
    assert again(NEIGHBOUR) is NEIGHBOUR
    assert again(Verdict("replace", index=NEIGHBOUR)).index is NEIGHBOUR


@pytest.mark.parametrize("action", ["explode", "Skip", None, 3])
def test_unknown_actions_are_rejected(action: Any) -> None:
    with pytest.raises(BadOption, match=rf"{action!r}\) is none of the actions 'raise', 'skip', 'retry', 'replace'"):
        Verdict(action)


@pytest.mark.parametrize("wait_s", [-1, float("nan"), float("inf"), "1", None, True])
def test_invalid_waits_are_rejected(wait_s: Any) -> None:
    with pytest.raises(BadOption, match="not a number of seconds"):
        Verdict("retry", wait_s=wait_s)


def test_replace_needs_an_index() -> None:
    with pytest.raises(BadOption, match="NEIGHBOUR for the next one that works"):
        Verdict("replace")
    assert Verdict("replace", index=0).index == 0


# -- faults ---


@pytest.mark.parametrize("through", [through_json, through_pickle])
@given(fault=faults)
def test_a_fault_survives_saving_and_loading(through: Any, fault: Fault) -> None:
    again = Fault.from_dict(through(fault.as_dict()))
    assert again == fault
    assert repr(again) == repr(fault), "types included"


def test_a_fault_is_made_from_a_failure() -> None:
    fault = Fault.of(failure(OSError("disk"), np.int64(7)), "replace", time=5.0, epoch=4, replacement=np.int64(8))
    assert fault == Fault(7, "OSError", "disk", "fetch", 3, 2, "replace", 5.0, 4, 8)
    assert type(fault.index) is int
    assert type(fault.replacement) is int


def test_long_messages_are_truncated() -> None:
    assert Fault.of(failure(OSError("x" * 9999)), "skip", time=1.0).message == "x" * MESSAGE_LENGTH


def test_an_exception_whose_str_fails_is_still_reported() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise KeyError("no")

    assert Fault.of(failure(Bad()), "skip", time=1.0).message == "(its text cannot be shown: KeyError)"


@pytest.mark.parametrize(
    "damage",
    [
        {"index": {"tuple": 5}},
        {"error": None},
        {"message": 5},
        {"worker": -1},
        {"attempt": 0},
        {"attempt": True},
        {"action": "explode"},
        {"time": "now"},
        {"time": float("nan")},
        {"time": -1e9},
        {"epoch": -1},
        {"replacement": {"what": 1}},
    ],
    ids=named,
)
def test_damaged_faults_are_rejected(damage: dict[str, Any]) -> None:
    with pytest.raises(BadState, match="damaged"):
        Fault.from_dict({**USUAL.as_dict(), **damage})


@pytest.mark.parametrize("name", sorted(USUAL.as_dict()))
def test_the_error_names_a_missing_key(name: str) -> None:
    state = USUAL.as_dict()
    del state[name]
    with pytest.raises(BadState, match=f"without '{name}'"):
        Fault.from_dict(state)


@pytest.mark.parametrize("state", [None, 3, [1], "fault"])
def test_objects_that_are_not_faults_are_rejected(state: Any) -> None:
    with pytest.raises(BadState, match=f"not {type(state).__name__}"):
        Fault.from_dict(state)


def test_unknown_keys_are_ignored() -> None:
    """A later version may add optional keys."""
    assert Fault.from_dict({**USUAL.as_dict(), "colour": "blue"}) == USUAL
