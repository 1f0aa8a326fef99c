"""Recognising damaged states."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.delivery.state import Snapshot
from feedline.delivery.state.damage import checked
from feedline.errors import BadState

PLACE: dict[str, Any] = {"feedline": 2, "epoch": 1, "ended": False, "seed": 3, "draw_seed": 3, "dataset_epoch": None}
EMPTY: dict[str, Any] = {"early": [], "streams": [], "turn": 0, "virtual": None}
SAMPLES: dict[str, Any] = {**PLACE, **EMPTY, "order": {"unit": "samples", "consumed": 6, "sampler": {"size": 9}}}
STREAM: dict[str, Any] = {"batches": 4, "noted_at": 3, "ended": False, "read": 8}
STREAMS: dict[str, Any] = {
    **SAMPLES,
    "order": {"unit": "stream batches", "batch_size": 2},
    "streams": [{**STREAM, "place": 6, "dataset": None, "iterator": {"n": 1}}, STREAM],
    "turn": 1,
}
SAMPLER: dict[str, Any] = {
    **SAMPLES,
    "order": {
        "unit": "own batches",
        "consumed": 0,
        "sampler_state": {"parts": [{"n": 1}], "iterator": None},
        "held": [[1, 2]],
        "redraw": 0,
    },
}
EARLY: dict[str, Any] = {
    **SAMPLES,
    "early": [2, 5],
    "order": {**SAMPLES["order"], "stride": [3, 0, 1]},
}
ENDLESS: dict[str, Any] = {**SAMPLES, "order": {**SAMPLES["order"], "endless": True}, "virtual": [2, 1]}
ENDED: dict[str, Any] = {
    **SAMPLES,
    "ended": True,
    "order": {
        "unit": "own batches",
        "sampler_state": {"parts": [], "iterator": 3},
        "finish": True,
        "held": [],
        "redraw": 1,
    },
    "streams": [{"dataset": {"n": 1}}, {"dataset": None}],
}
WHOLE = {
    "samples": SAMPLES,
    "streams": STREAMS,
    "sampler": SAMPLER,
    "early": EARLY,
    "endless": ENDLESS,
    "ended": ENDED,
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_states_are_accepted(name: str) -> None:
    assert checked(WHOLE[name]) is WHOLE[name]
    assert Snapshot.from_dict(WHOLE[name]).as_dict() == WHOLE[name]


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("samples", "order.consumed", "no 'order.consumed'"),
        ("samples", "order.unit", "no 'order.unit'"),
        ("streams", "streams.0.batches", r"no 'streams\[0\].batches'"),
        ("streams", "streams.1.read", r"no 'streams\[1\].read'"),
        ("streams", "streams.0.iterator", r"no 'streams\[0\].iterator'"),
        ("streams", "streams.0.place", r"no 'streams\[0\].place'"),
        ("sampler", "order.held", "no 'order.held'"),
        ("sampler", "order.redraw", "no 'order.redraw'"),
        ("sampler", "order.sampler_state.parts", "no 'order.sampler_state.parts'"),
        ("sampler", "order.sampler_state.iterator", "no 'order.sampler_state.iterator'"),
        ("early", "order.stride", "only one"),
        ("ended", "order.finish", "different epoch"),
    ],
)
def test_the_error_names_what_is_missing(name: str, path: str, message: str) -> None:
    state = copy.deepcopy(WHOLE[name])
    *holders, last = path.split(".")
    holder: Any = state
    for holder_name in holders:
        holder = holder[int(holder_name) if holder_name.isdigit() else holder_name]
    del holder[last]
    with pytest.raises(BadState, match=f"damaged: .*{message}.*start the epoch again"):
        checked(state)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("streams", {"turn": 3}),
        ("streams", {"streams": [STREAM, 5]}),
        ("streams", {"streams": [{**STREAM, "noted_at": 5}]}),
        ("streams", {"streams": [{**STREAM, "read": -1}]}),
        ("streams", {"streams": [{**STREAM, "ended": "no"}]}),
        ("sampler", {"order": {**SAMPLER["order"], "redraw": 2}}),
        ("sampler", {"order": {**SAMPLER["order"], "held": [[1], [2]]}}),
        ("sampler", {"order": {**SAMPLER["order"], "finish": True}}),
        ("samples", {"order": {**SAMPLES["order"], "torch_seed": -1}}),
        ("samples", {"order": {**SAMPLES["order"], "torch_generator": 5}}),
        ("ended", {"order": {**ENDED["order"], "consumed": 3}}),
        ("endless", {"virtual": None}),
        ("endless", {"order": {**ENDLESS["order"], "endless": 1}}),
    ],
)
def test_inconsistent_states_are_rejected(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(BadState, match="damaged"):
        checked({**WHOLE[name], **change})


@pytest.mark.parametrize("array", [np.arange(3), np.zeros(0), np.zeros((2, 2))])
@pytest.mark.parametrize("place", ["sampler", "batch_size", "length", "unit", "consumed"])
def test_an_array_in_place_of_a_value_is_rejected(array: Any, place: str) -> None:
    loader = feedline.Loader(list(range(20)), 2, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    for wrong in (array, {"kind": array}, [1, array]):
        with pytest.raises(BadState, match=rf"damaged: order\.{place}"):
            loader.load_state_dict({**state, "order": {**state["order"], place: wrong}})
    with pytest.raises(BadState, match="not ndarray"):
        loader.load_state_dict(array)
    loader.load_state_dict(state)
    assert len(list(loader)) == 9
    loader.close()


def test_arrays_in_a_users_own_state_are_accepted() -> None:
    state = {**SAMPLER, "order": {**SAMPLER["order"], "sampler_state": {"parts": [np.arange(3)], "iterator": None}}}
    assert checked(state) is state
