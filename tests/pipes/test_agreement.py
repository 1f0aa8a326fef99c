"""Each thread finds out by itself which samples a stream has. If two disagree, that is an error, not lost samples."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.errors import BadOption, DataWarning
from feedline.pipes import Pipe
from feedline.randomness import agreement
from feedline.randomness.agreement import Findings

COUNT = 200

# Any, throughout: samples of any kind.
Draw = Callable[[], float]


def by_worker() -> float:
    """Return something else in each worker: a disagreement that does not depend on chance."""
    return 0.9 if threading.current_thread().name.endswith("-1") else 0.1


OPERATORS: dict[str, Callable[[Draw], Pipe]] = {
    "filter": lambda draw: feedline.pipe(range(COUNT)).filter(lambda _: draw() < 0.5),
    "flat_map": lambda draw: feedline.pipe(range(COUNT)).flat_map(lambda x: [x] * (1 + (draw() < 0.5))),
    "unbatch": lambda draw: feedline.pipe(range(COUNT)).map(lambda x: [x] * (1 + (draw() < 0.5))).unbatch(),
    "pack": lambda draw: (
        feedline.pipe(range(COUNT)).map(lambda x: [x] * (1 + int(9 * draw()))).pack(16, window=8).map(firsts)
    ),
    "measure": lambda draw: (
        feedline.pipe(range(COUNT))
        .repeat()
        .map(lambda x: (x, 1 + int(9 * draw())))
        .mix(feedline.pipe(range(COUNT)).repeat().map(lambda x: (x, 5)), measure=lambda pair: pair[1])
        .take(COUNT)
    ),
    "later operators": lambda draw: (
        feedline.pipe(range(COUNT)).filter(lambda _: draw() < 0.5).map(abs).window_shuffle(8).batch(2).repeat(2)
    ),
}


def firsts(row: dict[str, Any]) -> list[int]:
    return [int(token) for token in row["tokens"][row["positions"] == 0]]


def samples(pipe: Pipe, **options: Any) -> list[Any]:
    loader = feedline.Loader(pipe, 4, collate_fn=list, **options)
    try:
        return [sample for batch in loader for sample in batch]
    finally:
        loader.close()


@pytest.mark.parametrize(
    ("name", "options"),
    [*zip(OPERATORS, [{}, {"seed": 1}, {"on_error": "skip"}, {"in_order": False}, {}, {}], strict=True)],
)
def test_threads_that_disagree_raise_an_error(name: str, options: dict[str, Any]) -> None:
    for draw in (by_worker, random.random):
        with pytest.raises(BadOption, match=r"sample \d+ .*feedline\.rng\(\).*engine='process'"):
            samples(OPERATORS[name](draw), workers=2, engine="thread", **options)


DRAWS: dict[str, Draw] = {
    "random": random.random,
    "numpy.random": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand(())),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_threads_agree_with_feedlines_generator(name: str) -> None:
    pipe = OPERATORS[name](lambda: float(feedline.rng().random()))
    expected = samples(pipe, seed=3)
    assert [*map(plain, samples(pipe, seed=3, workers=3, engine="thread"))] == [*map(plain, expected)]


def plain(sample: Any) -> Any:
    return sample.tolist() if isinstance(sample, np.ndarray) else sample


def test_processes_may_draw_from_any_generator() -> None:
    found = samples(
        OPERATORS["filter"](lambda: sum(draw() for draw in DRAWS.values()) / 3), workers=2, engine="process"
    )
    assert len(set(found)) == len(found) > 0


class Shuffled:
    """A user's iterable dataset, with an order of its own."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        first = int(100 * self.draw())
        return iter([*range(first, COUNT), *range(first)])


class Thinned(Shuffled):
    """A user's iterable dataset that leaves samples out, but not the first ones."""

    def __iter__(self) -> Iterator[int]:
        return (number for number in range(COUNT) if number < 10 or number % 2 or self.draw() < 0.5)


@pytest.mark.parametrize("kind", [Shuffled, Thinned])
def test_an_iterable_dataset_that_threads_read_differently_is_reported_once(kind: Callable[[Draw], Any]) -> None:
    with pytest.warns(DataWarning, match=r"does not .*feedline\.rng\(\)") as caught:
        samples(feedline.pipe(kind(by_worker)).map(abs), workers=2, engine="thread")
    assert len([one for one in caught if issubclass(one.category, DataWarning)]) == 1
    pipe = feedline.pipe(kind(lambda: float(feedline.rng().random()))).map(abs)
    assert samples(pipe, seed=3, workers=2, engine="thread") == samples(pipe, seed=3)


def test_random_numbers_that_decide_nothing_are_allowed() -> None:
    pipe = feedline.pipe(range(COUNT)).map(lambda x: (x, random.random())).filter(lambda pair: pair[0] % 2 == 0)
    found = [number for number, _ in samples(pipe, workers=2, engine="thread")]
    assert found == list(range(0, COUNT, 2))


def test_later_epochs_and_those_that_were_left_are_compared_on_their_own() -> None:
    limit = 100
    pipe = feedline.pipe(range(COUNT)).filter(lambda x: x < limit)
    with feedline.Loader(pipe, 4, workers=2, engine="thread", persistent=True) as loader:
        assert sum(map(len, loader)) == 100
        limit = 150
        next(iter(loader))
        loader.set_epoch(0)
        limit = 120
        loader.set_epoch(0)
        assert sum(map(len, loader)) == 120


# -- findings ---


def test_values_are_compared_wherever_workers_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_MOST", 5)
    findings = Findings()
    for first in (0, 3, 20, 2, 19, 0, 25):
        findings.compare("a", "filter(f)", first, [place % 3 for place in range(first, first + 9)])
    with pytest.raises(BadOption, match="sample 31 "):
        findings.compare("a", "filter(f)", 29, [2, 0, 0])
