"""What is said of a sample that failed."""

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

from feedline.errors import BadOption, BadState, TooManyBadSamples
from feedline.verdicts import (
    ACTIONS,
    MESSAGE_LENGTH,
    NEIGHBOUR,
    Failure,
    Fault,
    Verdict,
    error_name,
    index_key,
    pack_index,
    plain_index,
    unpack_index,
)
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
    refilled=st.booleans(),
)

USUAL = Fault(7, "OSError", "disk", "fetch", 0, 1, "skip", 1.7e9)


def failure(error: BaseException, index: Any = 7) -> Failure:
    return Failure(index=index, error=error, stage="fetch", attempt=2, worker=3)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


# -- indices ---


@given(indices)
def test_a_plain_index_is_plain_and_stays_as_it_is(index: Any) -> None:
    plain = plain_index(index)
    assert is_plain(plain)
    assert repr(plain_index(plain)) == repr(plain)


@pytest.mark.parametrize("through", [through_json, through_pickle])
@given(index=indices)
def test_an_index_is_recognised_after_it_was_saved(through: Any, index: Any) -> None:
    again = unpack_index(through(pack_index(index)))
    assert repr(again) == repr(plain_index(index)), "types included"
    assert index_key(again) == index_key(index)
    assert hash(index_key(again)) == hash(index_key(index))


@given(indices)
def test_an_index_is_recognised_after_it_was_sent(index: Any) -> None:
    assert index_key(through_pickle(index)) == index_key(index)


def is_plain(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str, bytes)


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


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


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
def test_what_becomes_of_an_index(index: Any, plain: Any) -> None:
    found = plain_index(index)
    assert found == plain
    assert type(found) is type(plain)


def test_large_arrays_are_told_apart() -> None:
    one, other = np.zeros(5000, int), np.zeros(5000, int)
    other[2500] = 1
    assert index_key(one) != index_key(other), "their reprs are the same"


def test_an_index_that_cannot_be_shown_is_no_failure_of_its_own() -> None:
    assert "Unshowable object at" in plain_index(Unshowable())


@pytest.mark.parametrize(
    "packed",
    [
        {"tuple": 3},
        {"tuple": [1], "more": 2},
        {"bytes": "xyz"},
        {"bytes": 3},
        {},
        {"set": [1]},
        b"x",
        [{"tuple": [object()]}],
    ],
    ids=named,
)
def test_a_damaged_index(packed: Any) -> None:
    with pytest.raises(BadState, match=r"damaged: .* is no index of a sample"):
        unpack_index(packed)


# -- verdicts ---


@pytest.mark.parametrize("again", [through_pickle, copy.copy, copy.deepcopy])
def test_the_neighbour_is_one_object_everywhere(again: Any) -> None:
    assert again(NEIGHBOUR) is NEIGHBOUR
    assert again(Verdict("replace", index=NEIGHBOUR)).index is NEIGHBOUR


@pytest.mark.parametrize("action", ["explode", "Skip", None, 3])
def test_an_unknown_action_is_refused(action: Any) -> None:
    with pytest.raises(BadOption, match=rf"{action!r}\) is none of the actions 'raise', 'skip', 'retry', 'replace'"):
        Verdict(action)


@pytest.mark.parametrize("wait_s", [-1, float("nan"), float("inf"), "1", None, True])
def test_a_wait_that_is_no_time_is_refused(wait_s: Any) -> None:
    with pytest.raises(BadOption, match="not a number of seconds"):
        Verdict("retry", wait_s=wait_s)


def test_a_replacement_has_to_be_named() -> None:
    with pytest.raises(BadOption, match="NEIGHBOUR for the next one that works"):
        Verdict("replace")
    assert Verdict("replace", index=0).index == 0


def test_a_failure_can_be_sent() -> None:
    again = through_pickle(failure(OSError("disk")))
    assert (again.index, again.stage, again.attempt, again.worker, again.key) == (7, "fetch", 2, 3, 0)
    assert str(again.error) == "disk"


# -- faults ---


@pytest.mark.parametrize("through", [through_json, through_pickle])
@given(fault=faults)
def test_a_fault_comes_back_as_it_was(through: Any, fault: Fault) -> None:
    again = Fault.from_dict(through(fault.as_dict()))
    assert again == fault
    assert repr(again) == repr(fault), "types included"


@given(faults)
def test_a_fault_can_be_sent(fault: Fault) -> None:
    assert through_pickle(fault) == fault


def test_a_fault_is_made_from_a_failure() -> None:
    fault = Fault.of(failure(OSError("disk"), np.int64(7)), "replace", time=5.0, epoch=4, replacement=np.int64(8))
    assert fault == Fault(7, "OSError", "disk", "fetch", 3, 2, "replace", 5.0, 4, 8, False)
    assert type(fault.index) is int
    assert type(fault.replacement) is int


def test_errors_are_named_as_they_would_be_imported() -> None:
    image_error = pytest.importorskip("PIL").UnidentifiedImageError
    assert error_name(image_error) == "PIL.UnidentifiedImageError"
    assert Fault.of(failure(image_error("no")), "skip", time=1.0).error == "PIL.UnidentifiedImageError"
    assert error_name(KeyError) == "KeyError"


def test_long_messages_are_cut() -> None:
    assert Fault.of(failure(OSError("x" * 9999)), "skip", time=1.0).message == "x" * MESSAGE_LENGTH


def test_an_exception_that_cannot_be_shown_is_reported_all_the_same() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise KeyError("no")

    assert Fault.of(failure(Bad()), "skip", time=1.0).message == "(its text cannot be shown: KeyError)"


@pytest.mark.parametrize(("action", "lost"), [("skip", True), ("replace", True), ("retry", False), ("raise", False)])
def test_which_samples_are_lost(action: str, lost: bool) -> None:
    assert Fault.of(failure(OSError()), action, time=1.0).lost is lost


def test_what_has_its_default_is_not_saved() -> None:
    assert sorted(USUAL.as_dict()) == ["action", "attempt", "error", "index", "message", "stage", "time", "worker"]


def test_a_fault_reads_as_a_sentence() -> None:
    assert str(USUAL) == "sample 7: OSError: disk (fetch, worker 0, attempt 1): skip"
    replaced = Fault.of(Failure((1, 2), ValueError(), "transform", 2, None), "replace", time=1.0, replacement=(1, 3))
    assert str(replaced) == "sample (1, 2): ValueError (transform, attempt 2): replace by (1, 3)"
    assert str(Fault.of(Failure([1, 2], ValueError(), "collate", 1, None), "skip", time=1.0)).startswith("batch [1, 2]")


@pytest.mark.parametrize(
    "damage",
    [
        {"index": {"tuple": 5}},
        {"error": None},
        {"message": 5},
        {"stage": ["fetch"]},
        {"worker": -1},
        {"worker": "0"},
        {"attempt": 0},
        {"attempt": True},
        {"attempt": 1.5},
        {"action": "explode"},
        {"action": ["skip"]},
        {"time": "now"},
        {"time": 1e30},
        {"time": float("nan")},
        {"time": -1e9},
        {"epoch": -1},
        {"epoch": None},
        {"replacement": {"what": 1}},
        {"refilled": 1},
    ],
    ids=named,
)
def test_a_damaged_fault(damage: dict[str, Any]) -> None:
    with pytest.raises(BadState, match="damaged"):
        Fault.from_dict({**USUAL.as_dict(), **damage})


@pytest.mark.parametrize("name", sorted(USUAL.as_dict()))
def test_a_fault_of_which_something_is_missing(name: str) -> None:
    state = USUAL.as_dict()
    del state[name]
    with pytest.raises(BadState, match=f"without '{name}'"):
        Fault.from_dict(state)


@pytest.mark.parametrize("state", [None, 3, [1], "fault"])
def test_what_is_no_fault_at_all(state: Any) -> None:
    with pytest.raises(BadState, match=f"not {type(state).__name__}"):
        Fault.from_dict(state)


def test_what_is_not_known_is_passed_over() -> None:
    """A later feedline may add what an earlier one can do without."""
    assert Fault.from_dict({**USUAL.as_dict(), "colour": "blue"}) == USUAL


def test_the_error_about_too_many_carries_them() -> None:
    exc = TooManyBadSamples("too many", (USUAL,))
    again = through_pickle(exc)
    assert again.faults == exc.faults == [USUAL]
    assert str(again) == "too many"
    assert isinstance(again, RuntimeError)
