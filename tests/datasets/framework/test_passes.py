"""What passes over streams have in common: continuing after an exception, retries, states."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from feedline.datasets.framework.passes import PartedStream, ResumablePass
from feedline.errors import BadState


class Numbers(PartedStream):
    def __init__(self, count: int, fails: dict[int, BaseException] | None = None) -> None:
        super().__init__()
        self.count = count
        self.fails = dict(fails or {})

    def __iter__(self) -> NumbersPass:
        return NumbersPass(self)


class NumbersPass(ResumablePass[int]):
    """Each exception is raised once."""

    _name = "numbers"

    def __init__(self, stream: Numbers) -> None:
        super().__init__(stream._part())
        self._stream = stream
        self._place = stream._part()[0]

    def _take(self) -> int:
        if self._place >= self._stream.count:
            raise StopIteration
        place, self._place = self._place, self._place + self._part[1]
        return place

    def _make(self, item: int) -> int:
        failure = self._stream.fails.pop(item, None)
        if failure is not None:
            raise failure
        return item

    def _position(self) -> dict[str, Any]:
        return {"place": self._place}

    def _options(self) -> dict[str, Any]:
        return {"count": self._stream.count}

    def _enter(self, state: dict[str, Any]) -> None:
        self._place = state["place"]


def test_the_next_sample_follows_after_an_exception() -> None:
    rows = iter(Numbers(4, {1: ValueError("one")}))
    assert next(rows) == 0
    with pytest.raises(ValueError, match="one"):
        next(rows)
    assert list(rows) == [2, 3]


def test_try_again_repeats_the_failed_sample() -> None:
    rows = iter(Numbers(4, {1: ValueError("one")}))
    assert not rows.try_again()
    assert next(rows) == 0
    with pytest.raises(ValueError, match="one"):
        next(rows)
    assert rows.try_again()
    assert rows.try_again()
    assert list(rows) == [1, 2, 3]


def test_an_interrupt_loses_nothing() -> None:
    rows = iter(Numbers(3, {1: KeyboardInterrupt()}))
    assert next(rows) == 0
    with pytest.raises(KeyboardInterrupt):
        next(rows)
    assert list(rows) == [1, 2]


def test_states_require_the_same_options_and_part() -> None:
    rows = iter(Numbers(5))
    next(rows)
    state = rows.state_dict()
    assert state == {"place": 1, "count": 5, "part": [0, 1]}
    other = iter(Numbers(5))
    other.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert list(other) == [1, 2, 3, 4]
    with pytest.raises(BadState, match=r"saved with count 5, but now it is 6.*Use the same data"):
        iter(Numbers(6)).load_state_dict(state)
    for wrong in (None, {}, {**state, "more": 1}):
        with pytest.raises(BadState, match=r"not the state of a pass over numbers.*another version.*start the epoch"):
            iter(Numbers(5)).load_state_dict(wrong)
    shared = Numbers(5)
    shared.set_worker(1, 2)
    with pytest.raises(BadState, match=r"part \(worker of a rank, number of them\) \[0, 1\]"):
        iter(shared).load_state_dict(state)


def test_every_worker_of_every_rank_has_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        for worker in range(3):
            stream = Numbers(20)
            stream.set_worker(worker, 3)
            found += list(stream)
    assert sorted(found) == list(range(20))
