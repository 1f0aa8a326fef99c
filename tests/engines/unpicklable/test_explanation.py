"""What is raised when something cannot be sent."""

from __future__ import annotations

import multiprocessing
import pickle

import pytest

from feedline.engines.unpicklable import explain
from feedline.errors import NotPicklable
from tests.engines.unpicklable.objects import Holding, bad, explained, spec_of


def test_if_each_part_can_be_pickled_the_error_is_passed_on() -> None:
    error = explain(spec_of(Holding(fine=1)), ValueError("only the first time"))
    assert "ValueError: only the first time" in str(error)
    assert 'engine="thread"' in str(error)


def test_fork_is_not_advised_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    message = explained(spec_of(bad))
    assert '"fork"' not in message
    assert 'engine="thread"' in message


@pytest.mark.parametrize("caught", [pickle.PicklingError, TypeError, AttributeError, RuntimeError])
def test_it_is_every_error_that_pickle_raises(caught: type[Exception]) -> None:
    with pytest.raises(caught):
        raise explain(spec_of(bad), TypeError())
    assert issubclass(NotPicklable, caught)
