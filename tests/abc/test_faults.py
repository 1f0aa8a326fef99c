"""Failures, faults, verdicts, and the plain values of indices."""

from __future__ import annotations

import copy
import enum
import json
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.abc.faults import (
    ACTIONS,
    MESSAGE_LENGTH,
    NEIGHBOUR,
    Failure,
    Fault,
    Verdict,
    index_key,
    plain_index,
)
from feedline.errors import BadOption, BadState
from tests.names import named

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.binary(max_size=10)
    | st.integers(-(2**63), 2**63 - 1).map(np.int64)
    | st.integers(0, 2**16 - 1).map(np.uint16)
    | st.floats(width=32).map(np.float32)
    | st.lists(st.integers(0, 9), max_size=4).map(np.array)
    | st.builds(slice, st.integers(0, 9), st.integers(0, 9))
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
indices = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple), max_leaves=6
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


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


NOT_AN_ACTION = "is none of the actions 'raise', 'skip', 'retry', 'replace'"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"action": action}, NOT_AN_ACTION) for action in ("explode", "Skip", None, 3)]
    + [
        ({"action": "retry", "wait_s": wait_s}, "not a number of seconds")
        for wait_s in (-1, float("nan"), float("inf"), "1", None, True)
    ]
    + [({"action": "replace"}, "NEIGHBOUR for the next one that works")],
    ids=str,
)
def test_a_verdict_is_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        Verdict(**options)
    assert Verdict("replace", index=0).index == 0


# -- indices ---


@pytest.mark.parametrize("through", [through_json, through_pickle])
@given(index=indices)
def test_an_index_is_recognised_after_it_was_saved(through: Any, index: Any) -> None:
    plain = plain_index(index)
    assert repr(plain_index(plain)) == repr(plain)
    assert index_key(through(plain)) == index_key(index)


class Colour(str, enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


class Place(NamedTuple):
    shard: int
    row: Any


class Bare:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    ("index", "plain"),
    [
        (np.int32(3), 3),
        (np.bool_(True), True),
        (np.str_("cat"), "cat"),
        (np.float64(0.5), 0.5),
        (np.array(3), 3),
        (torch.tensor(3), 3),
        (torch.tensor([3]), [3]),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (Colour.RED, "red"),
        (Size.LARGE, 3),
        (Place(1, np.int64(2)), (1, 2)),
        (float("nan"), "nan"),
        (np.float32("inf"), "inf"),
        ({"shard": 1}, "{'shard': 1}"),
        (np.datetime64("2020-01-01"), repr(np.datetime64("2020-01-01"))),
        (np.longdouble(0.5), repr(np.longdouble(0.5))),
        (Bare(shard=1, row=2), f"{__name__}.Bare(shard=1, row=2)"),
    ],
    ids=named,
)
def test_indices_become_plain_values(index: Any, plain: Any) -> None:
    found = plain_index(index)
    assert found == plain
    assert type(found) is type(plain)


# -- faults ---


@given(fault=faults)
def test_a_fault_survives_saving_and_loading(fault: Fault) -> None:
    assert Fault.from_dict(through_pickle(fault.as_dict())) == fault
    again = Fault.from_dict({**through_json(fault.as_dict()), "colour": "of a later version"})
    assert index_key(again.index) == index_key(fault.index)


def test_a_fault_is_made_from_a_failure() -> None:
    fault = Fault.of(failure(OSError("disk"), np.int64(7)), "replace", time=5.0, epoch=4, replacement=np.int64(8))
    assert fault == Fault(7, "OSError", "disk", "fetch", 3, 2, "replace", 5.0, 4, 8)
    assert type(fault.index) is int
    assert type(fault.replacement) is int


class Unprintable(Exception):
    def __str__(self) -> str:
        raise KeyError("no")


@pytest.mark.parametrize(
    ("error", "message"),
    [(OSError("x" * 9999), "x" * MESSAGE_LENGTH), (Unprintable(), "(its text cannot be shown: KeyError)")],
    ids=named,
)
def test_messages_are_truncated_and_always_there(error: Exception, message: str) -> None:
    assert Fault.of(failure(error), "skip", time=1.0).message == message


@pytest.mark.parametrize("state", [None, 3, [1], "fault", {"index": 7}, USUAL.as_dict() | {"message": 5}], ids=named)
def test_objects_that_are_not_faults_are_rejected(state: Any) -> None:
    with pytest.raises(BadState, match="is not a fault"):
        Fault.from_dict(state)
