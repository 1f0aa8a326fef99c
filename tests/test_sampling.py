"""Which cases of a test `make test` runs."""

from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.sampling import examples, sample


class Item:
    """The relevant part of a test as pytest collects it."""

    def __init__(self, name: str, *markers: pytest.Mark, parent: str = "tests/test_a.py") -> None:
        self.name = name
        self.parent = SimpleNamespace(nodeid=parent)
        self.nodeid = f"{parent}::{name}"
        self.markers = {marker.name: marker for marker in markers}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.markers.get(name)

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.markers[marker.name] = marker.mark


def ran(items: list[Any]) -> set[str]:
    sample(items)
    return {item.nodeid for item in items if "slow" not in item.markers}


@hypothesis.given(st.integers(1, 40), st.integers(1, 50))
def test_one_in_n_cases_runs_and_at_least_one(cases: int, every: int) -> None:
    items = [Item(f"test_x[{number}]", pytest.mark.sample(every).mark) for number in range(cases)]
    assert len(ran(items)) == -(-cases // every)


def test_the_same_cases_run_in_any_order() -> None:
    items = [Item(f"test_x[{number}]", pytest.mark.sample(3).mark) for number in range(20)]
    again = [Item(item.name, pytest.mark.sample(3).mark) for item in reversed(items)]
    assert ran(items) == ran(again)


def test_the_profile_scales_the_number_of_examples() -> None:
    usual = hypothesis.settings().max_examples
    assert examples(100) == usual
    assert examples(4) == 4, "never more than requested"
    assert examples(8) >= 5
