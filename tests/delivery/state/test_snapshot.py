"""What a saved state looks like, and which ones are rejected."""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.delivery.state import VERSION, Snapshot
from feedline.errors import BadState
from feedline.types import Position

numbers = st.integers(0, 2**63)
plain = st.none() | st.booleans() | numbers | st.text(max_size=20)
counts = st.integers(0, 2**62 - 1)
positions = st.builds(
    Position,
    dataset=st.none() | plain,
    iterator=st.none() | plain,
    place=counts,
    read=st.none() | counts,
    batches=counts,
    ended=st.booleans(),
    is_one=st.booleans(),
    is_before=st.booleans(),
)

snapshots = st.builds(
    Snapshot,
    epoch=counts,
    ended=st.just(False),
    seed=st.none() | numbers,
    draw_seed=numbers,
    order=st.dictionaries(
        st.text(max_size=10).map("own {}".format), plain | st.dictionaries(st.text(max_size=10), plain), max_size=4
    ).map(lambda order: {**order, "unit": "stream batches"}),
    early=st.just(()),
    streams=st.lists(positions, max_size=3).map(tuple),
    turn=st.just(0),
    virtual=st.none() | st.tuples(counts, counts),
)


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def through_pickle(state: Any) -> Any:
    return pickle.loads(pickle.dumps(state))


def through_torch(state: Any) -> Any:
    """Save it as programs do beside the model, and load it with torch's default, which allows only plain values."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("through", [through_json, through_pickle])
@given(snapshot=snapshots)
def test_a_state_survives_saving_and_loading(through: Any, snapshot: Snapshot) -> None:
    state = snapshot.as_dict()
    assert through(state) == state
    assert Snapshot.from_dict(through(state)) == snapshot


USUAL = Snapshot(
    epoch=12,
    seed=2**63 - 1,
    draw_seed=2**63 - 1,
    order={
        "unit": "samples",
        "consumed": 10**9,
        "sampler": {"kind": "RandomSampler", "size": 10**10},
        "stride": [64, 0, 1],
    },
    early=tuple(range(1, 9)),
    virtual=(10**6, 10**6),
)


def test_torch_can_save_and_load_a_state() -> None:
    assert Snapshot.from_dict(through_torch(USUAL.as_dict())) == USUAL


def test_the_turn_is_kept() -> None:
    streams = Position(batches=1, read=4), Position()
    snapshot = Snapshot(3, draw_seed=1, order={"unit": "stream batches"}, streams=streams, turn=1)
    assert Snapshot.from_dict(through_json(snapshot.as_dict())).turn == 1


# -- what is rejected ---


@pytest.mark.parametrize("state", [None, 3, "state", [1, 2], Snapshot(1)])
def test_objects_that_are_not_dictionaries_are_rejected(state: Any) -> None:
    with pytest.raises(BadState, match=f"not {type(state).__name__}"):
        Snapshot.from_dict(state)


def test_the_state_of_another_object_is_rejected() -> None:
    with pytest.raises(BadState, match=r"it has \['lr', 'momentum'\] but no 'feedline'") as refused:
        Snapshot.from_dict({"momentum": 0.9, "lr": 0.1})
    assert "torchdata" not in str(refused.value)


@pytest.mark.parametrize("state", [{"_snapshot": {}, "_steps_since_snapshot": 0}, {"_num_yielded": 3, 4: 5}])
def test_a_state_of_torchdata_is_recognised(state: Any) -> None:
    with pytest.raises(BadState, match="torchdata's StatefulDataLoader"):
        Snapshot.from_dict(state)


@pytest.mark.parametrize("version", [0, -1, "1", True, 1.0])
def test_numbers_that_no_version_has_saved_are_rejected(version: Any) -> None:
    with pytest.raises(BadState, match="no release of feedline has saved") as refused:
        Snapshot.from_dict({**USUAL.as_dict(), "feedline": version})
    assert repr(version) in str(refused.value)


@pytest.mark.parametrize("merged", [False, True])
def test_the_state_of_a_newer_feedline_is_refused_with_its_version(merged: bool) -> None:
    newer = {**USUAL.as_dict(), "feedline": VERSION + 1, "saved_by": "9.4.0", "epoch": {"a": "new form"}}
    with pytest.raises(BadState, match=f"format {VERSION + 1}.* feedline 9.4.0 saved it. Use that version"):
        Snapshot.from_dict({**USUAL.as_dict(), "ranks": [USUAL.as_dict(), newer]} if merged else newer)
    with pytest.raises(BadState, match="a newer feedline saved it"):
        Snapshot.from_dict({"feedline": VERSION + 1})


def test_a_later_version_reads_the_states_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    state = through_json(USUAL.as_dict())
    merged = through_json(Snapshot(0, ranks=(USUAL, USUAL)).as_dict())
    monkeypatch.setattr("feedline.delivery.state.snapshot.VERSION", VERSION + 2)
    assert Snapshot.from_dict(state) == USUAL
    assert Snapshot.from_dict(merged).ranks == (USUAL, USUAL)
    assert USUAL.as_dict()["feedline"] == VERSION + 2


@pytest.mark.parametrize("name", sorted(set(USUAL.as_dict()) - {"feedline", "saved_by"}))
def test_a_missing_key_is_noticed(name: str) -> None:
    state = USUAL.as_dict()
    del state[name]
    with pytest.raises(BadState, match="changed or cut off"):
        Snapshot.from_dict(state)


def test_a_missing_rank_is_noticed() -> None:
    merged = Snapshot(0, ranks=(USUAL, replace(USUAL, epoch=13))).as_dict()
    assert [each.epoch for each in Snapshot.from_dict(through_json(merged)).ranks] == [12, 13]
    for ranks in (merged["ranks"][:1], merged["ranks"][::-1], [], [5], None, [merged]):
        with pytest.raises(BadState, match="changed or cut off"):
            Snapshot.from_dict({**merged, "ranks": ranks})


def test_the_states_of_the_users_own_objects_may_be_anything() -> None:
    """They are not part of the checksum, but it notices if one is gone."""
    order = {"unit": "own batches", "consumed": 4, "sampler_state": {"parts": [np.arange(3)], "iterator": {1: 2}}}
    position = Position(torch.zeros(2), place=1)
    state = Snapshot(3, draw_seed=1, order={**order, "held": [{4, 5}]}, streams=(position,)).as_dict()
    state["streams"][0]["dataset"] = torch.ones(2)
    assert Snapshot.from_dict(state).streams[0].dataset.tolist() == [1, 1]
    for wrong in ({"dataset": None, "place": 1}, {"dataset": torch.ones(2)}, {"place": 1}):
        with pytest.raises(BadState, match="changed or cut off"):
            Snapshot.from_dict({**state, "streams": [wrong]})
