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
from tests.sampling import examples

pytestmark = pytest.mark.sample(8)

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


class Plain:
    """Has no state, so it is iterated again."""

    def __init__(self) -> None:
        self.epochs = 0

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        return iter(range(7))


class IteratorHasState(Plain):
    def __iter__(self) -> Any:
        return Walk(7)


class Walk:
    """An iterator with a state."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.place = 0
        self.asked = 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        if self.place >= self.stop:
            raise StopIteration
        self.asked += 1
        self.place += 1
        return self.place - 1

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class SamplerHasState(Plain):
    """Resumes once from its state; an epoch adds 100."""

    def __init__(self) -> None:
        super().__init__()
        self.place = 0

    def __iter__(self) -> Iterator[int]:
        while self.place < 7:
            self.place += 1
            yield self.place - 1 + 100 * self.epochs
        self.epochs += 1
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place, self.epochs = state["place"], state["epochs"]


class BothHaveState(IteratorHasState):
    """The sampler keeps its epochs, the iterator its place."""

    def state_dict(self) -> dict[str, int]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epochs = state["epochs"]


KINDS = [Plain, IteratorHasState, SamplerHasState, BothHaveState]


def order_of(kind: Any, size: int | None) -> ForeignOrder:
    sampler = kind()
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [None, 1, 2, 3, 7, 8])
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


@pytest.mark.parametrize("kind", [IteratorHasState, BothHaveState])
def test_with_a_state_of_the_iterator_nothing_is_read_again(kind: Any) -> None:
    first = Iteration(order_of(kind, 2))
    first.take(3)
    second = Iteration(order_of(kind, 2), first.state())
    assert second.take() == [[6]]
    source = second.plan._indices
    assert isinstance(source, CutIndices)
    assert isinstance(source.source, Walk)
    assert source.source.asked == 1, "nothing was read again"


@pytest.mark.parametrize("size", [2, 7, None])
def test_a_sampler_that_keeps_its_epoch_may_be_resumed_after_its_last_batch(size: int | None) -> None:
    """The rest is empty and the next epoch follows, also after another resumption."""
    whole = order_of(SamplerHasState, size)
    Iteration(whole).take()
    expected = Iteration(whole).take()
    first = Iteration(order_of(SamplerHasState, size))
    first.take(-(-7 // (size or 1)))
    order = order_of(SamplerHasState, size)
    second = Iteration(order, first.state())
    assert second.take() == []
    after = json.loads(json.dumps({**order.expected(), **second.plan.after()}))
    assert Iteration(order).take() == expected, "in the same program"
    assert Iteration(order_of(SamplerHasState, size), after).take() == expected, "in another one"


# -- which states fit ---


def test_states_of_missing_samplers_are_rejected() -> None:
    saved = Iteration(order_of(BothHaveState, 2))
    saved.take(1)
    with pytest.raises(BadState, match="states of 1 samplers"):
        Iteration(order_of(Plain, 2), saved.state())
    saved = Iteration(order_of(IteratorHasState, 2))
    saved.take(1)
    with pytest.raises(BadState, match="no load_state_dict"):
        Iteration(order_of(Plain, 2), saved.state())


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


@pytest.mark.parametrize("kind", [Loader, DataLoader])
@pytest.mark.parametrize("workers", [0, 1])
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
