"""Streams whose samples draw nothing are read without seeding; should one draw after all, nobody can tell."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.errors import SharedGenerators
from feedline.fetch import seeded, streams
from feedline.randomness.scope import seed_globals

COUNT, SIZE = 96, 4
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand(())),
    "randn": lambda: float(torch.randn(())),
}


class Late:
    """A stream that draws for some samples only, the first of them late."""

    def __init__(self, drawing: set[int], draw: Callable[[], float] = random.random) -> None:
        self.drawing, self.draw = drawing, draw
        self.opened = 0

    def __iter__(self) -> Iterator[Any]:
        self.opened += 1
        for number in range(COUNT):
            yield number, self.draw() if number in self.drawing else 0.0


class OneShot(Late):
    """A stream that goes on where it was, however often it is opened."""

    _samples: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        self._samples = self._samples or super().__iter__()
        return self._samples


def batches(dataset: Any, **options: Any) -> list[Any]:
    loader = feedline.Loader(dataset, SIZE, seed=5, collate=list, **options)
    try:
        return list(loader)
    finally:
        loader.close()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Returns what comes if every sample is seeded."""

    def make(dataset: Any, **options: Any) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(streams.Stream, "may_reopen", False)
            return batches(dataset, **options)

    return make


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("drawing", [{0}, {40}, {41, 43, 44}, {95}, set(range(60, 96)), set()])
def test_a_sample_that_draws_late_draws_what_it_would_have_drawn(
    drawing: set[int], shard: bool, draw: Callable[[], float], always: Callable[..., list[Any]]
) -> None:
    expected = always(Late(drawing, draw), shard=shard)
    dataset = Late(drawing, draw)
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    assert batches(dataset, shard=shard) == expected
    assert dataset.opened == 1 + (bool(drawing) and min(drawing) >= SIZE * seeded._LOOKS)
    after = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    assert after == before, "the training loop's own generators are as they were"


def test_workers_that_share_a_stream_agree(always: Callable[..., list[Any]]) -> None:
    expected = always(Late({50, 51, 90}))
    assert batches(Late({50, 51, 90}), workers=3, start_method="fork") == expected


def test_a_resumed_stream_agrees(always: Callable[..., list[Any]]) -> None:
    expected = always(Late({50, 70}))
    loader = feedline.Loader(Late({50, 70}), SIZE, seed=5, collate=list)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(15)]
    other = feedline.Loader(Late({50, 70}), SIZE, seed=5, collate=list)
    other.load_state_dict(loader.state_dict())
    assert first + list(other) == expected


def test_nothing_is_seeded_where_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def seed(key: int) -> None:
        seeds.append(key)
        seed_globals(key)

    monkeypatch.setattr(streams, "seed_globals", seed)
    batches(Late(set()))
    assert len(seeds) == SIZE * seeded._LOOKS


def test_a_stream_that_cannot_be_opened_anew_goes_on_and_says_so() -> None:
    with pytest.warns(SharedGenerators, match="cannot be read again"):
        found = batches(OneShot({50, 51, 60}))
    assert [number for batch in found for number, _ in batch] == list(range(COUNT))


def test_an_exception_after_a_late_draw_is_that_of_its_sample(always: Callable[..., list[Any]]) -> None:
    class Failing(Late):
        def __iter__(self) -> Iterator[Any]:
            for number, drawn in super().__iter__():
                if number == 42:
                    raise LookupError(f"sample {number}, {drawn}")
                yield number, drawn

    with pytest.raises(LookupError, match="sample 42") as caught:
        batches(Failing({41, 42}))
    with pytest.raises(LookupError) as expected:
        always(Failing({41, 42}))
    assert str(caught.value) == str(expected.value)


def test_samples_of_other_workers_that_fail_are_passed_over() -> None:
    class Failing:
        """An iterator that goes on after an exception."""

        def __iter__(self) -> Iterator[Any]:
            return iter(_Failing())

    class _Failing(Iterator[int]):
        def __init__(self) -> None:
            self.number = -1

        def __next__(self) -> int:
            self.number += 1
            if self.number >= COUNT:
                raise StopIteration
            if self.number == 70:
                raise LookupError("sample 70")
            return self.number

    loader = feedline.Loader(Failing(), SIZE, seed=5, collate=list, workers=2, start_method="fork")
    iterator, found, failed = iter(loader), [], []
    while True:
        try:
            found += next(iterator)
        except StopIteration:
            break
        except LookupError as exc:
            failed.append(str(exc))
    assert failed == ["sample 70"]
    assert found == [number for number in range(COUNT) if number not in range(68, 72)]
