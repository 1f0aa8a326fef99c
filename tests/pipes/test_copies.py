"""Workers that are threads read their own copies of iterable datasets, also of those inside pipes and mixtures."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import feedline
from feedline.datasets import mix
from feedline.text import tokenize
from feedline.types import EngineName

COUNT = 60


class Lines:
    """An iterable dataset that is its own iterator, which only one thread may use."""

    def __iter__(self) -> Lines:
        self.place, self.thread = 0, threading.get_ident()
        return self

    def __next__(self) -> int:
        assert self.thread == threading.get_ident(), "another thread reads this copy"
        if self.place == COUNT:
            raise StopIteration
        self.place += 1
        return self.place - 1


class Resuming:
    """An iterable dataset that keeps its place itself, and saves and restores it."""

    place = 0

    def __iter__(self) -> Iterator[int]:
        while self.place < COUNT:
            self.place += 1
            yield self.place - 1
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Wrapper:
    """A user's own iterable dataset around a pipe."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        return iter(self.source)


# Any, throughout: a dataset of any class.
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "pipe": lambda dataset: feedline.pipe(dataset).map(abs),
    "zip": lambda dataset: feedline.pipe(dataset).zip(feedline.pipe(range(COUNT))).filter(any).map(sum),
    "mix": lambda dataset: mix([dataset, list(range(COUNT))], seed=1),
    "mix of pipes": lambda dataset: mix([feedline.pipe(dataset).map(abs), mix([list(range(9)), [5, 6]], size=COUNT)]),
    "pipe of a mixture": lambda dataset: feedline.pipe(mix([dataset, list(range(COUNT))], [0.9, 0.1], seed=2)).map(abs),
    "a user's own": lambda dataset: Wrapper(feedline.pipe(dataset).map(abs)),
    "tokenize": lambda dataset: feedline.pipe(tokenize(feedline.pipe(dataset).map(str), lambda text: [int(text)])).map(
        sum
    ),
}


def loader(name: str, kind: Callable[[], Any], workers: int, engine: EngineName) -> feedline.Loader:
    return feedline.Loader(WRAPPERS[name](kind()), 3, workers=workers, engine=engine, collate_fn=list, seed=1)


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("kind", [Lines, Resuming])
def test_threads_deliver_and_resume_what_one_worker_does(name: str, kind: Callable[[], Any]) -> None:
    with loader(name, kind, 0, "inline") as alone:
        expected = [list(alone) for _ in range(2)]
    with loader(name, kind, 2, "thread") as threads:
        batches = iter(threads)
        assert [next(batches) for _ in range(5)] == expected[0][:5]
        state = json.dumps(threads.state_dict())
        assert list(batches) == expected[0][5:]
        assert list(threads) == expected[1]
    with loader(name, kind, 3, "thread") as resumed:
        resumed.load_state_dict(json.loads(state))
        assert list(resumed) == expected[0][5:]


def test_a_dataset_that_cannot_be_copied_is_shared() -> None:
    class Locked(Lines):
        def __iter__(self) -> Any:
            return iter(range(COUNT))

        def __copy__(self) -> Locked:
            raise TypeError("it holds a lock")

    for dataset in (feedline.pipe(Locked()).map(abs), mix([Locked()])):
        with feedline.Loader(dataset, 3, workers=2, engine="thread", collate_fn=list) as threads:
            assert [sample for batch in threads for sample in batch] == list(range(COUNT))
