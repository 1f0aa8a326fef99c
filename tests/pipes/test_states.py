"""A state is loaded only where it means the same samples: every option of an operator either must match, or may change.

The tables name each parameter of each operator once; a test compares them with the signatures.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import BadState
from feedline.pipes import Pipe
from tests.pipes.streams import Plain, saved

# Any, throughout: options, samples and states are of any kind.
SIZE = 60


def document(number: int) -> list[int]:
    return [number] * (1 + number % 7)


def fields(number: int) -> dict[str, list[int]]:
    return {"tokens": document(number), "other": document(number)}


def mapped(start: int = 0, count: int = SIZE) -> Pipe:
    return feedline.pipe(range(start, start + count))


def streamed(start: int = 0, count: int = SIZE) -> Pipe:
    return feedline.pipe(Plain(range(start, start + count)))


SOURCES: dict[str, Callable[..., Pipe]] = {"map-style": mapped, "stream": streamed}
every_source = pytest.mark.parametrize("source", SOURCES)


def apply(operator: str, source: str, options: dict[str, Any]) -> Pipe:
    make = SOURCES[source]
    pipe = make()
    match operator:
        case "pack":
            pipe = pipe.map(fields)
        case "unbatch":
            pipe = pipe.batch(2)
        case "zip" | "concat" | "interleave" | "mix":
            others = (make(100), make(200))
            return getattr(pipe, operator)(*others, **options)  # type: ignore[no-any-return]
    return getattr(pipe, operator)(**options)  # type: ignore[no-any-return]


FIXED: dict[str, dict[str, tuple[Any, Any]]] = {
    "balance": {"batch_size": (2, 3), "ranks": (1, 2), "window": (3, 4), "seed": (1, 2)},
    "batch": {"size": (3, 4), "drop_last": (False, True)},
    "enumerate": {"start": (0, 1)},
    "mix": {"seed": (1, 2), "size": (30, 40), "measure": (None, int), "weights": ([2, 1, 1], [1, 1, 1])},
    "pack": {
        "length": (16, 32),
        "strategy": ("best_fit", "first_fit"),
        "window": (8, 9),
        "too_long": ("cut", "drop"),
        "tokens": ("tokens", "other"),
    },
    "repeat": {"times": (2, None)},
    "shuffle": {"seed": (1, 2)},
    "skip": {"count": (5, 6)},
    "slice": {"start": (1, 2), "stop": (50, 51), "step": (1, 2)},
    "take": {"count": (50, 51)},
    "window_shuffle": {"size": (8, 9), "seed": (1, 2)},
}
"""Options that determine which sample is at which position, and two values of each."""


FREE: dict[str, dict[str, tuple[Any, Any]]] = {
    "balance": {"cost": (lambda number: number % 7, lambda number: float(number % 7))},
    "batch": {"collate_fn": (list, tuple)},
    "filter": {"function": (bool, lambda number: number)},
    "flat_map": {"function": (lambda number: [number] * 2, lambda number: (number, number))},
    "map": {"function": (lambda number: number + 1, lambda number: 1 + number), "num_threads": (0, 2)},
    "pack": {"pad": (0, 1), "labels": (False, True), "mask_first": (True, False)},
}
"""Options that may change, and two values with the same samples in the same places."""

WITHOUT_STATE = {"cache", "describe", "show", "set_epoch", "set_weights"}


def cases(*tables: dict[str, dict[str, tuple[Any, Any]]]) -> list[Any]:
    return [
        pytest.param(operator, option, *values, id=f"{operator}-{option}")
        for table in tables
        for operator, options in table.items()
        for option, values in options.items()
    ]


REQUIRED: dict[str, dict[str, Any]] = {
    "map": {"function": abs},
    "balance": {"cost": lambda number: number % 7, "batch_size": 2, "window": 4},
    "batch": {"size": 3},
    "pack": {"length": 16, "window": 8},
    "slice": {"start": 1, "stop": 50},
    "window_shuffle": {"size": 8},
}
"""Further options that a case needs."""


def saved_after(pipe: Pipe, count: int, **options: Any) -> Any:
    """Return the state of a loader after `count` batches."""
    loader = feedline.Loader(pipe, None, seed=1, **options)
    batches = iter(loader)
    for _ in range(count):
        next(batches)
    state = saved(loader.state_dict())
    loader.close()
    return state


def resumed(pipe: Pipe, state: Any, **options: Any) -> list[Any]:
    loader = feedline.Loader(pipe, None, seed=1, **options)
    try:
        loader.load_state_dict(state)
        return list(loader)
    finally:
        loader.close()


def is_possible(operator: str, source: str, option: str) -> bool:
    if operator == "shuffle":
        return source == "map-style"
    return (operator, option, source) not in (("mix", "measure", "map-style"), ("mix", "weights", "stream"))


def test_each_option_of_each_operator_is_in_one_table() -> None:
    known: dict[str, set[str]] = {}
    for table in (FIXED, FREE):
        for operator, options in table.items():
            known.setdefault(operator, set()).update(options)
    for name, method in vars(Pipe).items():
        if name.startswith("_") or name in WITHOUT_STATE or not callable(method):
            continue
        parameters = inspect.signature(method).parameters.values()
        names = {one.name for one in parameters if one.name != "self" and one.kind is not one.VAR_POSITIONAL}
        assert names == known.get(name, set()), f"Add the options of {name} to a table"


@pytest.mark.parametrize(("source", "then_filter"), [("map-style", False), ("map-style", True), ("stream", False)])
@pytest.mark.parametrize(("operator", "option", "before", "after"), cases(FIXED))
def test_a_state_does_not_fit_another_value_of_an_option(
    operator: str, option: str, before: Any, after: Any, source: str, then_filter: bool
) -> None:
    if not is_possible(operator, source, option):
        pytest.skip("no such operator")

    def made(value: Any) -> Pipe:
        pipe = apply(operator, source, {**REQUIRED.get(operator, {}), option: value})
        return pipe.filter(any_of) if then_filter else pipe

    state = saved_after(made(before), 3)
    assert resumed(made(before), state), "it fits where it was saved"
    with pytest.raises(BadState) as caught:
        resumed(made(after), state)
    for value in (before, after):
        value = value is not None if option == "measure" else str(value) if option == "weights" else value
        assert f"{operator}({option}={value!r})" in str(caught.value)


def any_of(_: object) -> bool:
    return True


@every_source
@pytest.mark.parametrize(("operator", "option", "before", "after"), cases(FREE))
def test_an_option_that_may_change_loses_nothing(
    operator: str, option: str, before: Any, after: Any, source: str
) -> None:
    whole = [flat(sample) for sample in apply(operator, source, {**REQUIRED.get(operator, {}), option: before})]
    state = saved_after(apply(operator, source, {**REQUIRED.get(operator, {}), option: before}), 3)
    rest = resumed(apply(operator, source, {**REQUIRED.get(operator, {}), option: after}), state)
    assert [flat(sample) for sample in rest] == whole[3:]


# Any: a sample, and its numbers.
def flat(sample: Any) -> Any:
    if isinstance(sample, dict):  # a row: without what padding and labels change
        return sample["tokens"][sample["segment_ids"] > 0].tolist()
    return np.asarray(sample).tolist()


def test_the_weights_of_streams_may_change() -> None:
    def mixed(*weights: float, measure: Any = None) -> Pipe:
        return streamed().repeat().mix(streamed(100).repeat(), weights=weights, measure=measure).take(40)

    for measure in (None, lambda number: 1 + number % 3):
        state = saved_after(mixed(1, 1, measure=measure), 10)
        begun = list(mixed(1, 1, measure=measure).take(10))
        samples = [*begun, *map(int, resumed(mixed(1, 3, measure=measure), state))]
        for start in (0, 100):
            own = [sample for sample in samples if start <= sample < start + SIZE]
            assert own == list(range(start, start + len(own))), "every dataset goes on where it was"
        assert len(samples) == 40


CHAINS: dict[str, tuple[Callable[[Pipe], Pipe], Callable[[Pipe], Pipe]]] = {
    "an operator is missing": (lambda p: p.map(int).batch(2), lambda p: p.batch(2)),
    "an operator is new": (lambda p: p.batch(2), lambda p: p.map(int).batch(2)),
    "operators are swapped": (lambda p: p.skip(2).window_shuffle(4), lambda p: p.window_shuffle(4).skip(2)),
    "another operator": (lambda p: p.take(40), lambda p: p.skip(20)),
    "another dataset inside": (lambda p: p.zip(mapped().skip(3)), lambda p: p.zip(mapped().skip(4))),
    "more datasets": (lambda p: p.concat(mapped()), lambda p: p.concat(mapped(), mapped())),
    "an operator after others": (lambda p: p.concat(mapped()).take(70), lambda p: p.concat(mapped()).take(71)),
}


@every_source
@pytest.mark.parametrize("name", CHAINS)
def test_a_state_does_not_fit_other_operators(name: str, source: str) -> None:
    before, after = CHAINS[name]
    state = saved_after(before(SOURCES[source]()), 3)
    assert resumed(before(SOURCES[source]()), state)
    with pytest.raises(BadState):
        resumed(after(SOURCES[source]()), state)


@pytest.mark.parametrize("then", [lambda pipe: pipe.map(int), lambda pipe: pipe.filter(any_of)])
def test_another_size_of_the_dataset_is_named(then: Callable[[Pipe], Pipe]) -> None:
    state = saved_after(then(mapped()), 3)
    with pytest.raises(BadState, match=r"size=60.*size=61"):
        resumed(then(mapped(count=61)), state)


@pytest.mark.parametrize(
    "options", [{"on_error": "skip"}, {"workers": 1, "engine": "thread", "on_error": "skip"}, {"workers": 1}]
)
def test_a_state_is_refused_by_every_engine_under_every_policy(options: dict[str, Any]) -> None:
    state = saved_after(streamed().window_shuffle(8), 3)
    with pytest.raises(BadState, match="shuffle"):
        resumed(streamed().window_shuffle(9), state, **options)


def test_a_cache_may_be_added_and_left_out() -> None:
    plain, cached = mapped().map(int), mapped().map(int).cache(memory="1MB")
    for before, after in [(plain, cached), (cached, plain)]:
        state = saved_after(before.shuffle(seed=1), 3)
        assert [*map(int, resumed(after.shuffle(seed=1), state))] == list(before.shuffle(seed=1))[3:]


def test_a_state_stays_small() -> None:
    pipe = mapped().shuffle(seed=1).map(int).filter(any_of).window_shuffle(8).batch(4)
    assert len(json.dumps(saved_after(pipe, 3))) < 1000
