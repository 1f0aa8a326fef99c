"""Which values the controls of a view accept and reject."""

import pytest

from feedline.errors import BadOption
from feedline.tools.lab.controls import Choice, Control, Number, Switch, Text, described, read

CONTROLS: tuple[Control, ...] = (
    Number("workers", "Workers", 0, 8, 2),
    Number("load", "Load", 0, 1, 0.5, step=0.1),
    Choice("engine", "Engine", ("process", "thread"), "process"),
    Switch("shuffle", "Shuffle", default=True),
    Text("dataset", "Dataset", "a:b"),
)


def test_missing_values_get_their_defaults() -> None:
    assert read(CONTROLS, {}) == {"workers": 2, "load": 0.5, "engine": "process", "shuffle": True, "dataset": "a:b"}


def test_whole_numbers_stay_whole() -> None:
    values = read(CONTROLS, {"workers": 3.0})
    assert values["workers"] == 3
    assert isinstance(values["workers"], int)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 10**9}, "Workers: 1000000000 is not possible here.*0 to 8"),
        ({"workers": 10**400}, "Workers: 1000.* is not possible here"),
        ({"workers": -1}, "0 to 8"),
        ({"workers": "many"}, "'many' is not a number"),
        ({"workers": True}, "not a number"),
        ({"workers": float("nan")}, "not possible"),
        ({"engine": "gpu"}, "not one of process, thread"),
        ({"shuffle": 1}, "neither true nor false"),
        ({"dataset": 7}, "enter a text"),
        ({"batch": 1}, "no setting 'batch'"),
    ],
)
def test_impossible_values_are_rejected_with_the_bounds(given: dict[str, object], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        read(CONTROLS, given)


def test_a_control_is_described_for_the_page() -> None:
    assert described(CONTROLS[2]) == {
        "kind": "choice",
        "name": "engine",
        "label": "Engine",
        "options": ("process", "thread"),
        "default": "process",
    }
