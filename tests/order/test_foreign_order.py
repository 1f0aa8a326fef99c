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
from feedline.order.foreign_order import CutIndices, ForeignOrder
from feedline.order.order import Entry
from feedline.order.progress import Progress
from feedline.types import Key, Share
from tests.sampling import examples

pytestmark = pytest.mark.sample(8)

# -- cutting ---


class Lazy:
    """Records when `iter` was called and how far its iterator was read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.events: list[Any] = []

    def __iter__(self) -> Iterator[int]:
        self.events.append("begun")
        for index in range(self.count):
            self.events.append(index)
            yield index


@given(st.integers(0, 20), st.integers(1, 6), st.booleans())
def test_indices_are_cut_as_torch_does(count: int, size: int, drop_last: bool) -> None:
    stop = count // size * size if drop_last else count
    expected = [list(range(start, min(start + size, count))) for start in range(0, stop, size)]
    cut = CutIndices(range(count), size, drop_last=drop_last)
    assert list(cut) == expected
    with pytest.raises(StopIteration):
        next(cut)


def test_the_sampler_is_first_read_with_the_first_batch_and_no_further() -> None:
    sampler = Lazy(5)
    cut = CutIndices(sampler, 2, drop_last=False)
    assert sampler.events == []
    next(cut)
    assert sampler.events == ["begun", 0, 1]


def test_a_batch_that_is_not_full_is_known_to_be_the_last() -> None:
    cut = CutIndices(range(3), 2, drop_last=False)
    next(cut)
    assert not cut.ended
    next(cut)
    assert cut.ended


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
def test_a_sampler_that_keeps_its_epoch_starts_the_next_one_after_the_end(size: int | None) -> None:
    order = order_of(SamplerHasState, size)
    first = Iteration(order)
    first.take()
    after = json.loads(json.dumps({**order.expected(), **first.plan.after()}))
    expected = Iteration(order).take()
    assert Iteration(order_of(SamplerHasState, size), after).take() == expected


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


# -- when the sampler is asked ---


def test_iter_is_called_when_the_iteration_starts() -> None:
    sampler = Plain()
    order = ForeignOrder(sampler)
    order.prepare({})
    assert sampler.epochs == 1, "before the first batch, as in torch"
    order.plan(Entry(Key(0, 0), 0))
    assert sampler.epochs == 1
    order.plan(Entry(Key(0, 0), 0))
    assert sampler.epochs == 2, "once more for the next epoch"


class Drawn:
    """A stand-in for a generator from which an order is drawn."""

    drawn_from = "seed"

    def __init__(self) -> None:
        self.next_seed = 5
        self.begun_with: list[Any] = []

    def begin(self, order: dict[str, Any]) -> None:
        self.begun_with.append(order.get("next"))

    def check(self, order: dict[str, Any]) -> None:
        if order.get("consumed") and order.get("seed") is None:
            raise BadState("no seed")

    def found_in(self, order: dict[str, Any]) -> dict[str, Any]:
        return {"seed": order["seed"]} if order.get("seed") is not None else {}

    def after(self) -> dict[str, Any]:
        return {"next": self.next_seed}

    def iterate(self, noted: dict[str, Any]) -> Iterator[int]:
        if not noted:
            noted["seed"] = self.next_seed
            self.next_seed += 1
        yield from range(noted["seed"], noted["seed"] + 3)


def test_the_origin_of_an_order_is_saved_and_restored() -> None:
    drawn = Drawn()
    first = Iteration(ForeignOrder(range(3), drawn.iterate, origin=drawn))
    assert first.take(1) == [5]
    second = Iteration(ForeignOrder(range(3), drawn.iterate, origin=drawn), first.state())
    assert second.take() == [6, 7]
    assert Iteration(ForeignOrder(range(3), drawn.iterate, origin=drawn)).take() == [6, 7, 8], "drawn anew"
    assert first.plan.after() == {"next": 7}


def test_settle_draws_the_origin_before_the_iteration() -> None:
    drawn = Drawn()
    order = ForeignOrder(range(3), drawn.iterate, origin=drawn)
    settled = order.settle()
    assert settled == {"seed": 5}
    again = ForeignOrder(range(3), drawn.iterate, origin=drawn)
    assert Iteration(again, {**order.expected(), **settled}).take() == [5, 6, 7]
    assert order_of(Plain, 2).settle() == {}
    settled = order_of(IteratorHasState, 2).settle()
    assert settled["sampler_state"]["iterator"] == {"place": 0}


# -- which states fit ---


def test_states_must_match_in_length_batch_size_and_ranks() -> None:
    state = order_of(Plain, 2).expected()
    order_of(Plain, 2).check(state)
    with pytest.raises(BadState, match="batch_size: 2, and here batch_size: 3"):
        order_of(Plain, 3).check(state)
    with pytest.raises(BadState, match="length: 7, and here length: 8"):
        ForeignOrder(range(8), batch_size=2).check(state)
    with pytest.raises(BadState, match="world_size"):
        ForeignOrder(range(7), batch_size=2, share=Share(0, 3)).check(state)


def test_samplers_may_have_no_length() -> None:
    class Unsized:
        def __len__(self) -> int:
            raise NotImplementedError

        def __iter__(self) -> Iterator[int]:
            return iter([1])

    assert ForeignOrder(Unsized()).expected()["length"] is None
    assert ForeignOrder(iter([1])).expected()["length"] is None


def test_states_of_missing_samplers_are_rejected() -> None:
    saved = Iteration(order_of(BothHaveState, 2))
    saved.take(1)
    with pytest.raises(BadState, match="states of 1 samplers"):
        Iteration(order_of(Plain, 2), saved.state())
    saved = Iteration(order_of(IteratorHasState, 2))
    saved.take(1)
    with pytest.raises(BadState, match="no load_state_dict"):
        Iteration(order_of(Plain, 2), saved.state())


def test_a_sampler_may_modify_the_state_it_loads() -> None:
    class Greedy(SamplerHasState):
        def load_state_dict(self, state: dict[str, int]) -> None:
            super().load_state_dict(state)
            state.clear()

    first = Iteration(order_of(Greedy, 2))
    first.take(1)
    state = first.state()
    expected = Iteration(order_of(Greedy, 2), state).take()
    assert Iteration(order_of(Greedy, 2), state).take() == expected


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


class Counted:
    """A sampler that counts calls to `len`."""

    length_calls = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        self.length_calls += 1
        return 4


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_iterating_does_not_ask_for_the_length_of_the_sampler(kind: Any) -> None:
    sampler = Counted()
    assert [batch.tolist() for batch in kind(list(range(4)), 2, sampler=sampler)] == [[0, 1], [2, 3]]
    assert sampler.length_calls == 0
