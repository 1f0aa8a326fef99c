"""The controls that a view declares in its signature, and the values that they accept."""

from collections.abc import Iterator
from typing import Annotated

import pytest

from feedline.errors import BadOption
from feedline.tools.lab.view import Control, Event, View
from tests.tools.lab.views import COUNTING, WAITING


def trying_out(
    workers: Annotated[int, Control("Workers", 0, 8)] = 2,
    load: Annotated[float, Control("Load", 0, 1, 0.1)] = 0.5,
    engine: Annotated[str, Control("Engine", options=("process", "thread"))] = "process",
    shuffle: Annotated[bool, Control("Shuffle")] = True,
    dataset: Annotated[str, Control("Dataset")] = "a:b",
) -> Iterator[Event]:
    """It tries things.

    Look closely.
    """
    yield {}


VIEW = View(trying_out)


def test_a_view_describes_itself() -> None:
    described = (VIEW.name, VIEW.title, VIEW.notice, VIEW.more)
    assert described == ("trying_out", "Trying out", "It tries things.", "Look closely.")
    assert [control.kind for control in VIEW.controls] == ["number", "number", "choice", "switch", "text"]
    assert VIEW.described()["controls"][2]["options"] == ("process", "thread")
    assert not WAITING.controls
    assert WAITING.takes_clicks
    assert not COUNTING.takes_clicks


def test_missing_values_get_their_defaults_and_whole_numbers_stay_whole() -> None:
    usual = {"workers": 2, "load": 0.5, "engine": "process", "shuffle": True, "dataset": "a:b"}
    assert VIEW.read({}) == usual
    values = VIEW.read({"workers": 3.0, "load": 1})
    assert values == {**usual, "workers": 3, "load": 1.0}
    assert isinstance(values["workers"], int)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"workers": value}, "Workers: .*0 to 8") for value in (10**9, 10**400, -1, "many", True, float("nan"))),
        ({"engine": "gpu"}, "one of process, thread"),
        ({"shuffle": 1}, "true or false"),
        *(({"dataset": value}, "a text") for value in (7, "x" * 2000)),
        ({"batch": 1}, "no setting 'batch'"),
    ],
)
def test_impossible_values_are_refused_with_what_is_possible(given: dict[str, object], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        VIEW.read(given)
