"""The log of faults."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.abc.faults import index_key
from feedline.errors import BadState
from feedline.faults import Fault, FaultLog

indices: st.SearchStrategy[Any] = (
    st.integers(0, 50)
    | st.integers(0, 50).map(np.int64)
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.tuples(st.integers(0, 3), st.text(max_size=2))
    | st.lists(st.integers(0, 3), max_size=3)
    | st.dictionaries(st.text(max_size=2), st.integers(0, 3), max_size=2)
    | st.lists(st.integers(0, 3), max_size=3).map(np.array)
)
stages = st.sampled_from(["fetch", "transform", "collate", "worker"])
actions = st.sampled_from(["raise", "skip", "retry", "replace"])


def fault(index: Any = 7, action: str = "skip", stage: str = "fetch", message: str = "disk", **more: Any) -> Fault:
    return Fault(index, "OSError", message, stage, 0, 1, action, 1.7e9, **more)


@given(st.lists(st.tuples(actions, stages), max_size=9), st.integers(0, 9))
def test_the_state_at_an_earlier_moment_is_available(kinds: list[tuple[str, str]], until: int) -> None:
    """As long as nothing has been dropped since."""
    log = FaultLog(most_entries=5)
    states = []
    for index, (action, stage) in enumerate(kinds):
        states.append((log.total, log.dropped, log.state()))
        log.append(fault(index, action, stage))
    states.append((log.total, log.dropped, log.state()))
    total, dropped, state = states[min(until, len(kinds))]
    if dropped == log.dropped:
        assert log.state(total) == state
    log.clear()
    assert log.state(total) == {}


faults = st.builds(fault, indices, actions, stages, st.text(max_size=5), epoch=st.integers(0, 9), replacement=indices)


def log_of(entries: Iterable[Fault], most_entries: int = 10_000) -> FaultLog:
    log = FaultLog(most_entries)
    for entry in entries:
        log.append(entry)
    return log


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


# -- a sequence of faults ---


def test_the_log_is_a_sequence_of_faults() -> None:
    entries = [fault(index) for index in range(5)]
    log = log_of(entries)
    assert len(log) == 5
    assert list(log) == entries
    assert list(reversed(log)) == entries[::-1]
    assert log[0] == entries[0]
    assert log[-1] == entries[4]
    assert log[1:3] == entries[1:3]
    assert entries[2] in log
    assert log.index(entries[2]) == 2
    with pytest.raises(IndexError):
        log[5]


# -- quarantine ---


@given(st.lists(faults))
def test_quarantine_holds_every_form_of_an_index_once(entries: list[Fault]) -> None:
    lost = {index_key(entry.index) for entry in entries if entry.lost and entry.stage != "collate"}
    log = log_of(entries)
    assert len(log.quarantined) == len(lost)
    assert all((log.quarantined_as(entry.index) is not None) == (index_key(entry.index) in lost) for entry in entries)


# -- the oldest are dropped ---


def test_the_oldest_faults_are_dropped_but_still_count_and_stay_quarantined() -> None:
    log = log_of((fault(index) for index in range(10)), most_entries=3)
    assert [entry.index for entry in log] == [7, 8, 9]
    assert log.dropped == 7
    assert log.counts()["skip"] == 10
    assert log.quarantined == list(range(10))


# -- states ---


@pytest.mark.parametrize("through", [through_json, through_pickle])
@given(entries=st.lists(faults, max_size=8), most_entries=st.integers(1, 8))
def test_a_log_survives_saving_and_restoring(through: Any, entries: list[Fault], most_entries: int) -> None:
    log = log_of(entries, most_entries)
    again = log_of([fault("before"), fault("it")], most_entries)
    again.restore(through(log.state()))
    assert list(again) == list(log)
    assert again.counts() == log.counts()
    assert again.dropped == log.dropped
    assert repr(again.quarantined) == repr(log.quarantined)
    assert all(again.quarantined_as(index) is not None for index in log.quarantined)
    assert again.state() == log.state()


@pytest.mark.parametrize(
    "state",
    [None, {"entries": [5]}, {"entries": [{"index": 5}]}, {"quarantined": [{"what": 5}]}, {"counts": {"skip": 5}}],
    ids=repr,
)
def test_a_damaged_state_is_rejected_and_changes_nothing(state: Any) -> None:
    log = log_of([fault(7), fault(8, "retry")])
    before = log.state()
    with pytest.raises(BadState, match=r"damaged|is not a fault"):
        log.restore(state)
    assert log.state() == before


# -- output ---


def test_the_repr_shows_counts_and_the_last_few() -> None:
    log = log_of((fault(index, message="two\nlines") for index in range(9)), most_entries=5)
    head, *lines = repr(log).splitlines()
    assert head == "FaultLog of 9 faults: 9 skip; the last 5 in detail; 9 samples in quarantine"
    assert lines[0] == "  ..."
    assert lines[1:] == [f"  sample {n}: OSError: two lines (fetch, worker 0, attempt 1): skip" for n in (6, 7, 8)]


def test_a_smaller_log_keeps_the_last_faults() -> None:
    log = FaultLog(2)
    log.restore(log_of(fault(index) for index in range(5)).state())
    assert [entry.index for entry in log] == [3, 4]
    assert log.dropped == 3
    assert log.quarantined == list(range(5))
