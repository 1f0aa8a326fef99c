"""Failing samples are replaced."""

from __future__ import annotations

import pytest

from feedline.faults import Replace
from tests.faults.loaders import (
    Bad,
    Numbers,
    batches_of,
    everywhere,
    make,
    on,
    outcomes_of,
)

pytestmark = pytest.mark.sample(10)


@everywhere
def test_neighbours_replace_failing_samples(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(12, {2, 3, 11}), on_error="replace", **on(engine))
    expected = [[0, 1, 4, 4], [4, 5, 6, 7], [8, 9, 10, 0]]
    assert batches_of(loader) == expected
    assert [(fault.index, fault.replacement, fault.action) for fault in loader.faults] == [
        (2, 4, "replace"),
        (3, 4, "replace"),
        (11, 0, "replace"),
    ]
    assert batches_of(loader) == expected, "from now on without requesting them"
    assert len(loader.faults) == 3


@everywhere
def test_a_function_names_the_replacement(loader_kind: str, engine: str) -> None:
    names = {"a": 1, "b": None, "c": 3, "d": 4}

    class Named:
        def __getitem__(self, name: str) -> int:
            if names[name] is None:
                raise Bad(name)
            return names[name]  # type: ignore[return-value]

        def __len__(self) -> int:
            return 4

    loader = make(
        loader_kind,
        Named(),
        2,
        sampler=["a", "b", "c", "d"],
        on_error=Replace(by=lambda name: "d"),
        **on(engine),
    )
    assert batches_of(loader) == [[1, 4], [3, 4]]
    assert batches_of(loader) == [[1, 4], [3, 4]]
    [fault] = loader.faults
    assert (fault.index, fault.replacement) == ("b", "d")
    without = make(loader_kind, Named(), 2, sampler=["a", "b"], on_error="replace", **on(engine))
    with pytest.raises(Bad) as caught:
        list(without)
    assert "no neighbour" in "\n".join(caught.value.__notes__)


@everywhere
def test_the_error_is_raised_if_no_neighbour_works(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(40, range(1, 40)), on_error="replace", **on(engine, 1))
    first = outcomes_of(loader)[0]
    assert type(first) is Bad
    assert "in place of 1" in "\n".join(first.__notes__)
