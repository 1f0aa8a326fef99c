"""The samples that are not requested again."""

from __future__ import annotations

import pickle
from collections.abc import Hashable

import numpy as np

from feedline.abc.faults import Failure, Fault
from feedline.faults.log import Quarantine
from feedline.types.indices import index_key


def fault(index: object) -> Fault:
    return Fault.of(Failure(index, OSError("disk"), "fetch", 1, worker=0), "skip", time=1.7e9)


def quarantine(*indices: object) -> Quarantine:
    return Quarantine({index_key(index): fault(index) for index in indices})


def test_an_index_is_recognised_in_any_form() -> None:
    held = quarantine(3, "cat", (1, 2), [4, 5], {"a": 1})
    for index in (3, np.int64(3), "cat", (1, 2), (np.int8(1), 2), [4, 5], np.array([4, 5]), {"a": 1}):
        assert index in held
    for other in (4, "3", "dog", (1, 3), [4], {"a": 2}, None):
        assert other not in held


def test_a_quarantine_compares_with_sets() -> None:
    held = quarantine(3, 7)
    assert held == {3, 7}
    assert {3, 7} == held
    assert held != {3}
    assert held < {3, 7, 9}
    assert held & {3, 9} == {3}
    assert held | {9} == frozenset({3, 7, 9})
    assert held.isdisjoint({9})


def test_a_quarantine_keeps_the_order_and_form_of_indices() -> None:
    held = quarantine(9, [1], 3)
    assert list(held) == [9, [1], 3]
    assert len(held) == 3
    assert repr(held) == "Quarantine([9, [1], 3])"


def test_a_quarantine_is_a_view() -> None:
    faults: dict[Hashable, Fault] = {3: fault(3)}
    held = Quarantine(faults)
    faults[4] = fault(4)
    assert 4 in held
    faults.clear()
    assert not held
    assert 3 not in held


def test_a_quarantine_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(quarantine(3, "cat"))) == {3, "cat"}
