"""What `make test` leaves to `make slow`, and that every test runs in both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.thinning import (
    ABOUT_PROCESSES,
    CIRCUMSTANCES,
    EVERY,
    LARGE_IMPORTS,
    PROCESSES_IN,
    thin,
    try_fewer_examples,
    turn,
)

TESTS = Path(__file__).parent


class Item:
    """A test as pytest collects it, as far as it matters."""

    def __init__(self, file: str, name: str, **parameters: object) -> None:
        self.path = TESTS / file
        self.name = f"{name}[{parameters}]"
        self.nodeid = f"{file}::{self.name}"
        self.callspec = SimpleNamespace(params=parameters)
        self.markers: list[str] = []

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.markers.append(marker.name)


def left(*items: Any) -> list[Any]:
    """The parameters of what `make test` runs."""
    thin(items)
    return [item.callspec.params for item in items if "slow" not in item.markers]


def test_a_test_runs_in_one_of_its_circumstances_for_each_of_its_subjects() -> None:
    engines = ["inline", "thread", "process"]
    items = [Item("test_a.py", "test_x", engine=engine, case=case) for engine in engines for case in "abcdefgh"]
    ran = left(*items)
    assert sorted(parameters["case"] for parameters in ran) == list("abcdefgh")
    assert len({parameters["engine"] for parameters in ran}) > 1, "not the same one for all"


@pytest.mark.parametrize(
    ("name", "values", "with_processes"),
    [("engine", ("inline", "thread", "process"), "process"), ("workers", (0, 2), 2)],
)
def test_processes_are_started_by_one_test_in_some(
    name: str, values: tuple[object, ...], with_processes: object
) -> None:
    def ran(folder: str) -> int:
        items = [
            Item(f"{folder}/test_a.py", f"test_{number}", **{name: value}) for number in range(96) for value in values
        ]
        found = [parameters[name] for parameters in left(*items)]
        assert len(found) == 96
        assert set(found) == set(values)
        return found.count(with_processes)

    usual = 96 // PROCESSES_IN
    assert abs(ran("parity") - usual) < usual // 2
    assert abs(ran(ABOUT_PROCESSES[0]) - 96 // len(values)) < usual // 2


@pytest.mark.parametrize("values", [(-1, 1.5), ("two", None)])
def test_bad_values_of_a_circumstance_are_what_a_test_is_about(values: tuple[object, ...]) -> None:
    assert len(left(*(Item("test_a.py", "test_x", workers=value) for value in values))) == len(values)


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_of_many_combinations_some_run_and_of_few_one(count: int) -> None:
    every = EVERY["order"]
    ran = left(*(Item("order/test_a.py", "test_x", number=number) for number in range(count)))
    assert max(1, count // every) <= len(ran) <= -(-count // every)


def test_a_file_has_its_own_number_or_that_of_its_folder() -> None:
    items = [Item("faults/test_kept.py", "test_x", number=number) for number in range(16)]
    assert len(left(*items)) == 16 // EVERY["faults/test_kept.py"]


def test_what_is_thinned_is_there() -> None:
    assert [place for place in (*EVERY, *ABOUT_PROCESSES) if not (TESTS / place).exists()] == []
    assert "engine" in CIRCUMSTANCES


@pytest.mark.parametrize(("given", "tried"), [(100, 25), (40, 10), (8, 5), (3, 3)])
def test_properties_are_tried_on_fewer_examples(given: int, tried: int) -> None:
    numbers = []

    @hypothesis.settings(max_examples=given, database=None)
    @hypothesis.given(st.integers())
    def law(number: int) -> None:
        numbers.append(number)

    try_on_fewer(law)
    assert len(numbers) == tried


def test_properties_that_name_no_number_are_tried_on_fewer_examples_too() -> None:
    numbers = []

    @hypothesis.given(st.integers())
    def law(number: int) -> None:
        numbers.append(number)

    try_on_fewer(law)
    assert len(numbers) == hypothesis.settings().max_examples // 4


def try_on_fewer(law: Callable[[], None]) -> None:
    item: Any = Item("test_a.py", "law")
    item.obj = law
    try_fewer_examples([item])
    law()


def test_large_imports_come_last() -> None:
    files = [f"{folder}/test_a.py" for folder in ("abc", "datasets", "engines", "packing", "order")]
    items: list[Any] = [Item(file, "test_x") for file in files]
    folders = [item.path.parent.name for item in sorted(items, key=turn)]
    assert folders == ["abc", "engines", "order", "packing", "datasets"]


def test_where_imports_are_large_there_are_tests() -> None:
    assert all(any(TESTS.glob(f"{place}*")) for place in LARGE_IMPORTS)
