"""How a worker handles samples that fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.abc import ErrorPolicy, Repeatable
from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.datasets.formats.arrays import ArrayDataset
from feedline.faults import Fault, Retry, Verdict
from feedline.faults.policy import policy_of
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.global_states import seed_globals
from feedline.randomness.keys import mix
from feedline.randomness.scope import Scope, enter, rng
from feedline.types import DatasetKind, Draw, IndexBlock, StreamSharding
from feedline.workers.fetch import fetcher_for
from feedline.workers.fetch.fetcher import _LOOKS
from feedline.workers.fetch.guard import _MOST_REPLACEMENTS, Guard, NothingLeft
from tests.sampling import examples

KEY = 77

pytestmark = pytest.mark.usefixtures("generators_as_they_were")


class Flaky:
    """Sample i is `(i, a random number)`; its first `fails[i]` attempts also draw, then raise."""

    def __init__(self, fails: dict[int, int] | None = None, count: int = 10, draw: Callable[[], float] | None = None):
        self.fails = dict(fails or {})
        self.count = count
        self.draw = draw or (lambda: 0.0)
        self.requested: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.requested.append(index)
        drawn = self.draw()
        if self.fails.get(index, 0) > 0:
            self.fails[index] -= 1
            raise KeyError(index)
        return index, drawn


class FlakyBulk(Flaky):
    """The same with `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        return [self[index] for index in indices]


ALWAYS = 1 << 30


class Bench:
    """A fetcher with a guard, as in a worker."""

    def __init__(
        self,
        dataset: Any,
        on_error: Any,
        *,
        batched: bool = True,
        seeded: bool = False,
        collate: Callable[[Any], Any] = list,
        kind: DatasetKind = DatasetKind.MAP,
        sharding: StreamSharding | None = None,
        pause: Callable[[float], Any] | None = None,
    ) -> None:
        self.waits: list[float] = []
        self.scope = Scope(seeds_globals=seeded)
        policy = on_error if isinstance(on_error, ErrorPolicy) else policy_of(on_error)
        self.guard = Guard(policy, self.scope, dataset, worker=3, pause=pause or self.waits.append)
        spec = WorkerSpec(
            dataset, kind, collate, NumpyFramework(), 1, 0, batched=batched, seeded=seeded, sharding=sharding
        )
        self.scope.begin(Draw(KEY))
        self.fetch = self._inside(lambda: fetcher_for(dataset, spec, self.scope, None, self.guard))

    def _inside(self, call: Callable[[], Any]) -> Any:
        before = enter(self.scope)
        try:
            return call()
        finally:
            enter(before)

    def make(self, indices: Any, *, skip: tuple[int, ...] = (), first: int = 0) -> Any:
        self.scope.begin(Draw(KEY, first))
        self.guard.begin(skip)
        return self._inside(lambda: self.fetch(indices))

    def make_empty(self, indices: Any, **how: Any) -> None:
        """Request a batch that is left without samples."""
        with pytest.raises(NothingLeft):
            self.make(indices, **how)

    @property
    def reported(self) -> list[tuple[Any, str, int]]:
        return [(fault.index, fault.action, fault.attempt) for fault in self.guard.faults]


def fault_of(bench: Bench) -> Fault:
    (fault,) = bench.guard.faults
    return fault


def drawn(place: int, draw: str, first: int = 0) -> float:
    """Return the first number that the sample at this place must draw."""
    scope = Scope()
    scope.begin(Draw(KEY, first))
    scope.place = place
    if draw == "rng":
        return float(scope.generator().random())
    seed_globals(scope.key())
    return DRAWS[draw]()


DRAWS: dict[str, Callable[[], float]] = {
    "rng": lambda: float(rng().random()),
    "random": random.random,
}


# -- replace ---


@settings(deadline=None)
@given(bad=st.sets(st.integers(0, 9), max_size=9), index=st.integers(0, 9), seeded=st.booleans())
def test_the_next_sample_that_works_replaces_a_bad_one(bad: set[int], index: int, seeded: bool) -> None:
    bench = Bench(Flaky(dict.fromkeys(bad, ALWAYS)), "replace", seeded=seeded)
    other = next(step % 10 for step in range(index, index + 10) if step % 10 not in bad)
    assert bench.make([index]) == [(other, 0.0)]
    if other == index:
        assert bench.reported == []
    else:
        fault = fault_of(bench)
        assert (fault.index, fault.action, fault.replacement) == (index, "replace", other)


def test_the_search_for_a_replacement_is_bounded() -> None:
    dataset = Flaky(dict.fromkeys(range(100), ALWAYS), count=100)
    bench = Bench(dataset, "replace")
    with pytest.raises(KeyError) as caught:
        bench.make([50])
    assert dataset.requested == list(range(50, 51 + _MOST_REPLACEMENTS))
    assert any("in place of 50" in note for note in caught.value.__notes__)


# -- collate ---


class Picky:
    """A collate function that draws, and fails the first `fails` times."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails

    def __call__(self, samples: list[Any]) -> Any:
        number = float(rng().random()), random.random()
        if self.fails:
            self.fails -= 1
            raise ValueError("ragged")
        return number


def test_a_retried_collate_function_draws_the_same_numbers() -> None:
    bench = Bench(Flaky(), Retry(3, wait_s=0.0), collate=Picky(2), seeded=True)
    batch = bench.make([1, 2])
    assert fault_of(bench).stage == "collate"
    assert bench.reported == [([1, 2], "retry", 3)]
    assert batch == Bench(Flaky(), "retry", collate=Picky(), seeded=True).make([1, 2])


# -- calls to the policy ---


def test_a_policy_gets_the_sample_the_attempt_and_the_worker() -> None:
    seen: list[tuple[Any, str, int, int | None, int]] = []

    def ask(failure: Any) -> Any:
        seen.append((failure.index, failure.stage, failure.attempt, failure.worker, failure.key))
        return Verdict("retry") if failure.attempt < 3 else Verdict("replace", index=8)

    bench = Bench(Flaky({5: ALWAYS, 8: 1}), ask)
    assert bench.make([4, 5], first=30) == [(4, 0.0), (8, 0.0)]
    key = mix(KEY, 31)
    assert seen == [(5, "fetch", attempt, 3, key) for attempt in (1, 2, 3)] + [(8, "fetch", 1, 3, key)]
    assert bench.reported == [(5, "replace", 3)]
    assert fault_of(bench).replacement == 8


# -- vectorised fetches, and the global generators ---


def test_a_vectorised_fetch_falls_back_to_single_samples_when_one_fails() -> None:
    dataset = ArrayDataset(np.arange(5) * 10)
    bench = Bench(dataset, "skip", collate=default)
    assert bench.make(IndexBlock(np.array([1, 2]))).tolist() == [10, 20]
    assert bench.make(IndexBlock(np.array([1, 99, 3]))).tolist() == [10, 30]
    assert bench.make(IndexBlock(np.array([1, 4, 3])), skip=(1,)).tolist() == [10, 30]


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("kind", [Flaky, FlakyBulk])
@pytest.mark.parametrize("action", ["skip", "replace", "retry"])
def test_faults_are_reported_once_when_a_seeded_batch_is_made_twice(
    action: str, kind: type[Flaky], draws: bool
) -> None:
    state = {"drawing": False}
    dataset = kind(draw=lambda: random.random() if state["drawing"] else 0.0, count=100)
    bench = Bench(dataset, Retry(1, wait_s=0.0) if action == "retry" else action, seeded=True)
    for number in range(_LOOKS + 1):  # by now the fetcher assumes that it draws nothing
        bench.make([number])
    state["drawing"] = draws
    dataset.fails = {50: 1 if action == "retry" else ALWAYS}
    batch = bench.make([49, 50, 51])
    places, indices = {"skip": ([0, 2], [49, 51]), "replace": ([0, 1, 2], [49, 51, 51])}.get(
        action, ([0, 1, 2], [49, 50, 51])
    )
    assert [index for index, _ in batch] == indices
    assert len(bench.reported) <= 1
    assert bench.reported == [(50, action, 1)] or action == "retry"
    if kind is Flaky or action != "retry":  # in a bulk fetch all draw in one go, unless one fails
        assert [number for _, number in batch] == [drawn(place, "random") if draws else 0.0 for place in places]


@settings(deadline=None, max_examples=examples(200))
@given(
    indices=st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
    fails=st.dictionaries(st.integers(0, 9), st.sampled_from([1, 2, ALWAYS]), max_size=5),
    attempts=st.integers(1, 3),
    kind=st.sampled_from([Flaky, FlakyBulk]),
    draw=st.sampled_from(["rng", "random"]),
    known=st.sets(st.integers(0, 5), max_size=2),
)
def test_samples_with_a_successful_attempt_are_delivered_and_each_failure_is_reported_once(
    indices: list[int],
    fails: dict[int, int],
    attempts: int,
    kind: type[Flaky],
    draw: str,
    known: set[int],
) -> None:
    policy = Retry(attempts, then="skip", wait_s=0.0)
    bench = Bench(kind(fails, draw=DRAWS[draw]), policy, seeded=draw != "rng")
    skip = tuple(place for place in known if place < len(indices))
    left = {place: fails.get(index, 0) for place, index in enumerate(indices) if place not in skip}
    at_once = kind is FlakyBulk and not skip
    first = next((place for place, count in left.items() if count), None)
    if at_once and first is not None:
        left[first] -= 1  # failed in the bulk fetch
    lost = [place for place, count in left.items() if count > attempts]
    there = {place: (indices[place], drawn(place, draw)) for place in left if place not in lost}
    if not there:
        bench.make_empty(indices, skip=skip)
    else:
        batch = bench.make(indices, skip=skip)
        assert [index for index, _ in batch] == [index for index, _ in there.values()]
        if not at_once or first is not None:  # otherwise all draw in one go
            assert batch == list(there.values())
    reported: list[tuple[Any, str]] = [
        (indices[place], "skip" if place in lost else "retry") for place, count in left.items() if count
    ]
    if at_once and first is not None and not reported:
        reported = [(indices, "retry")]
    assert [(index, action) for index, action, _ in bench.reported] == reported


# -- streams ---


class Continuing:
    """An iterable whose iterator is not a generator, so it continues after an exception."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return ContinuingIterator(self.items)


class ContinuingIterator(Iterator[Any]):
    def __init__(self, items: Sequence[Any]) -> None:
        self._items = iter(items)

    def __next__(self) -> Any:
        item = next(self._items)
        if isinstance(item, Exception):
            raise item
        return item


def stream(items: Sequence[Any], on_error: Any, *, kind: Any = Continuing, **how: Any) -> Bench:
    return Bench(kind(items), on_error, kind=DatasetKind.ITERABLE, **how)


BAD = OSError("torn")


def test_a_stream_continues_past_skipped_samples() -> None:
    bench = stream([0, BAD, 2, BAD, BAD, 5, 6, BAD], "skip")
    assert bench.make(2) == [0, 2]
    assert bench.reported == [(1, "skip", 1)]
    assert bench.make(2) == [5, 6]
    assert bench.reported == [(3, "skip", 1), (4, "skip", 1)]
    with pytest.raises(StopIteration):
        bench.make(2)
    assert bench.reported == [(7, "skip", 1)], "reported with the end"


class Tape(Repeatable, Iterator[Any]):
    """Continues after an exception, unless `try_again` is called."""

    def __init__(self, dataset: Flaky) -> None:
        self._dataset = dataset
        self._place = 0

    def __next__(self) -> Any:
        if self._place == len(self._dataset):
            raise StopIteration
        self._place += 1
        return self._dataset[self._place - 1][0]

    def try_again(self) -> bool:
        self._place -= 1
        return True


class Tapes:
    def __init__(self, dataset: Flaky) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return Tape(self._dataset)


@pytest.mark.parametrize(
    ("on_error", "missing", "reported"),
    [
        (Retry(2, wait_s=0.0), set(), [(1, "retry", 3), (4, "retry", 2)]),
        (Retry(1, then="skip", wait_s=0.0), {1}, [(1, "skip", 2), (4, "retry", 2)]),
        ("skip", {1, 4}, [(1, "skip", 1), (4, "skip", 1)]),
    ],
)
def test_try_again_is_called_on_iterators_that_have_it(on_error: Any, missing: set[int], reported: Any) -> None:
    bench = Bench(Tapes(Flaky({1: 2, 4: 1}, count=6)), on_error, kind=DatasetKind.ITERABLE)
    assert bench.make(6) == [number for number in range(6) if number not in missing]
    assert bench.reported == reported


@pytest.mark.parametrize(("then", "reported"), [("raise", None), ("skip", [(1, "skip", 1)])])
def test_an_iterator_that_cannot_repeat_a_sample_is_not_asked_again(then: Any, reported: Any) -> None:
    bench = stream([0, BAD], Retry(3, then=then, wait_s=0.0))
    if then == "raise":
        with pytest.raises(OSError, match="torn"):
            bench.make(2)
    else:
        assert bench.make(2) == [0]
        assert bench.reported == reported
