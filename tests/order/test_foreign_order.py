"""Orders of samplers that are not feedline's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline import DataLoader, Loader
from feedline.errors import BadState
from feedline.order.foreign import CutIndices, ForeignOrder
from feedline.order.order import Entry
from feedline.order.plan import Progress
from feedline.types import Key
from tests.order import datasets
from tests.sampling import examples

# -- cutting ---


def test_an_iterator_with_a_shrinking_length_is_not_restarted_at_its_end() -> None:
    class Remaining:
        def __init__(self) -> None:
            self.left = [0, 1, 2, 3]

        def __iter__(self) -> Remaining:
            return self

        def __len__(self) -> int:
            return len(self.left)

        def __next__(self) -> int:
            if not self.left:
                raise StopIteration
            return self.left.pop(0)

    class Sampler:
        def __iter__(self) -> Remaining:
            return Remaining()

    assert list(islice(CutIndices(Sampler(), 2, drop_last=False), 5)) == [[0, 1], [2, 3]]


# -- samplers of many kinds, each resumed everywhere ---


class BothHaveState(datasets.StatefulIteratorSampler):
    """The sampler keeps its epochs, the iterator its place."""

    epochs = 0

    def state_dict(self) -> dict[str, int]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epochs = state["epochs"]


def order_of(kind: Any, size: int | None) -> ForeignOrder:
    sampler = kind(7)
    if size is None:
        return ForeignOrder(sampler)
    return ForeignOrder(sampler, lambda _: CutIndices(sampler, size, drop_last=False), inner=sampler, batch_size=size)


class Iteration:
    """One epoch of an order, partly delivered to the training loop."""

    def __init__(self, order: ForeignOrder, state: dict[str, Any] | None = None) -> None:
        order.check(state or {})
        self.order = order
        self.progress = Progress()
        order.prepare(state or {})
        self.plan = order.plan(Entry(Key(0, 0), 0, state or {}, self.progress))
        self._asked: list[Any] = []

    def ask(self, count: int) -> None:
        """Request batches ahead, as workers do."""
        self._asked += islice(self.plan, count)

    def take(self, count: int | None = None, *, ahead: int = 0) -> list[Any]:
        """Deliver `count` batches, or all that are left."""
        taken: list[Any] = []
        while count is None or len(taken) < count:
            self.ask(1 + ahead - len(self._asked))
            if not self._asked:
                break
            taken.append(self._asked.pop(0))
            self.progress.note(self.progress.delivered)
        return taken

    def state(self) -> dict[str, Any]:
        state = {**self.plan.state(self.progress.delivered), **self.order.expected()}
        return dict(json.loads(json.dumps(state)))


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (datasets.Backwards, 2),
        (datasets.StatefulIteratorSampler, 3),
        (datasets.StatefulSampler, 1),
        (datasets.StatefulSampler, 7),
        (BothHaveState, None),
        (BothHaveState, 8),
    ],
)
@settings(deadline=None, max_examples=examples(25))
@given(done=st.integers(0, 8), ahead=st.integers(0, 3), again=st.integers(0, 3))
def test_an_order_resumes_from_every_batch(kind: Any, size: int | None, done: int, ahead: int, again: int) -> None:
    everything = Iteration(order_of(kind, size)).take()
    first = Iteration(order_of(kind, size))
    taken = first.take(done, ahead=ahead)
    second = Iteration(order_of(kind, size), first.state())
    taken += second.take(again, ahead=ahead)
    third = Iteration(order_of(kind, size), second.state())
    assert taken + third.take() == everything


def noting(read: list[int]) -> Any:
    original = datasets.Zigzag.__next__

    def note(iterator: datasets.Zigzag) -> int:
        read.append(original(iterator))
        return read[-1]

    return note


def test_with_a_state_of_the_iterator_nothing_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Iteration(order_of(BothHaveState, 2))
    first.take(3)
    state = first.state()
    read: list[int] = []
    monkeypatch.setattr(datasets.Zigzag, "__next__", noting(read))
    assert Iteration(order_of(BothHaveState, 2), state).take() == [[3]]
    assert read == [3], "nothing was read again"


@pytest.mark.parametrize("size", [2, 7, None])
def test_a_sampler_that_keeps_its_epoch_may_be_resumed_after_its_last_batch(size: int | None) -> None:
    """The rest is empty and the next epoch follows, also after another resumption."""
    whole = order_of(datasets.StatefulSampler, size)
    Iteration(whole).take()
    expected = Iteration(whole).take()
    first = Iteration(order_of(datasets.StatefulSampler, size))
    first.take(-(-7 // (size or 1)))
    order = order_of(datasets.StatefulSampler, size)
    second = Iteration(order, first.state())
    assert second.take() == []
    after = json.loads(json.dumps({**order.expected(), **second.plan.after()}))
    assert Iteration(order).take() == expected, "in the same program"
    assert Iteration(order_of(datasets.StatefulSampler, size), after).take() == expected, "in another one"


# -- which states fit ---


def test_states_of_missing_samplers_are_rejected() -> None:
    saved = Iteration(order_of(BothHaveState, 2))
    saved.take(1)
    with pytest.raises(BadState, match="states of 1 samplers"):
        Iteration(order_of(datasets.Backwards, 2), saved.state())
    saved = Iteration(order_of(datasets.StatefulIteratorSampler, 2))
    saved.take(1)
    with pytest.raises(BadState, match="no load_state_dict"):
        Iteration(order_of(datasets.Backwards, 2), saved.state())


class Watchful:
    """A sampler whose iterator is a generator that must be closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    def __iter__(self) -> Iterator[int]:
        self.opened += 1
        try:
            yield from range(10)
        finally:
            self.closed += 1


@pytest.mark.parametrize(("kind", "workers"), [(Loader, 0), (DataLoader, 1)])
def test_the_samplers_iterator_is_closed_after_the_loop_and_the_state_is_kept(kind: Any, workers: int) -> None:
    def make(sampler: Watchful) -> Any:
        options = {"workers" if kind is Loader else "num_workers": workers}
        return kind(list(range(10)), 2, sampler=sampler, engine="thread" if workers else "auto", **options)

    sampler = Watchful()
    loader = make(sampler)
    for _ in loader:
        break
    assert sampler.closed == sampler.opened > 0
    other = make(Watchful())
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [[2, 3], [4, 5], [6, 7], [8, 9]]
