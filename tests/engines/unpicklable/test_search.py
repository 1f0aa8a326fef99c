"""The smallest object that cannot be pickled is found, wherever it is, without pickling everything again and again."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from feedline.engines.unpicklable import explain, search
from feedline.engines.unpicklable.trial import Trial
from tests.engines.unpicklable.objects import Holding, Node, bad, explained, path_in, spec_of


def test_the_first_of_several_is_named() -> None:
    assert path_in(explained(spec_of(Holding(fine=1, first=bad, second=bad), bad, bad))) == "dataset.first"


def test_a_part_is_not_blamed_for_what_is_wrong_with_its_owner() -> None:
    dataset = Holding()
    dataset.items = [Holding(parent=dataset) for _ in range(3)]
    dataset.lock = threading.Lock()
    assert path_in(explained(spec_of(dataset))) == "dataset.lock"


def test_a_list_that_holds_itself() -> None:
    endless: list[Any] = []
    endless += [endless, bad]
    assert path_in(explained(spec_of(endless))) == "dataset[1]"


class Counted:
    """Counts how often it is pickled."""

    times = 0

    def __reduce__(self) -> Any:
        Counted.times += 1
        return Counted, ()


def test_a_long_container_costs_little_more_than_pickling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[None] = []

    class Counting(Trial):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            trials.append(None)

    monkeypatch.setattr(search, "Trial", Counting)
    count = 10_000
    spec = spec_of(Holding(items=[Counted() for _ in range(count)] + [bad]))
    Counted.times = 0
    message = str(explain(spec, TypeError()))
    assert path_in(message) == f"dataset.items[{count}]"
    assert Counted.times < 5 * count
    assert len(trials) < 50


def test_many_children_that_refer_back_cost_no_more() -> None:
    count = 3000
    dataset = Holding()
    dataset.items = [Holding(parent=dataset, counted=Counted()) for _ in range(count)]
    dataset.lock = threading.Lock()
    Counted.times = 0
    assert path_in(str(explain(spec_of(dataset), TypeError()))) == "dataset.lock"
    assert Counted.times < 5 * count


def test_what_is_nested_too_deeply_is_named_where_it_begins() -> None:
    chain = None
    for _ in range(20_000):
        chain = Node(chain)
    dataset = Holding(fine=[[1]], graph=Holding(head=chain))
    try:
        message = explained(spec_of(dataset))
        assert path_in(message) == "dataset.graph.head"
        assert "nested too deeply" in message
        assert "refer to each other by number" in message
    finally:
        while chain is not None:  # link by link: all at once would be too deep for the interpreter as well
            chain.following, chain = None, chain.following
