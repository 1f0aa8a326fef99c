from __future__ import annotations

import pickle
import sys
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.sql.keys import Keys, repeated

ANY = st.one_of(
    st.lists(st.integers()),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.text()),
    st.lists(st.binary()),
    st.lists(st.floats(allow_nan=False)),
    st.lists(st.one_of(st.integers(), st.text())),
    st.lists(st.uuids()),
    st.lists(st.booleans()),
)


@given(ANY, st.data())
def test_keys_come_back_as_they_were(values: list[Any], data: Any) -> None:
    keys = pickle.loads(pickle.dumps(Keys(values)))
    assert len(keys) == len(values)
    indices = data.draw(st.lists(st.integers(0, len(values) - 1))) if values else []
    found = keys.at(indices)
    assert found == [values[index] for index in indices]
    assert [type(key) for key in found] == [type(values[index]) for index in indices]


def test_they_are_packed() -> None:
    count = 10_000
    assert Keys(range(count)).nbytes == 8 * count
    names = [f"name {number:06d}" for number in range(count)]
    listed = sys.getsizeof(names) + sum(map(sys.getsizeof, names))
    assert Keys(names).nbytes < listed / 3


@pytest.mark.parametrize(
    ("values", "found"),
    [([1, 2, 3], None), ([1, 2, 1], 1), (["a", "A"], None), ([uuid.UUID(int=1)] * 2, uuid.UUID(int=1)), ([], None)],
)
def test_repeated(values: list[Any], found: Any) -> None:
    assert repeated(values) == found
