"""Endless data, cut into epochs of a fixed number of batches."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline import DataLoader, Loader, samplers
from feedline.delivery.state import Snapshot
from feedline.errors import BadOption, BadState
from tests.sampling import examples


def make(count: int = 10, size: int = 4, **options: Any) -> Loader:
    return Loader(list(range(count)), size, shuffle=True, seed=2, **options)


def epochs_of(loader: Loader, steps: int, count: int, **options: Any) -> list[list[list[int]]]:
    return [[batch.tolist() for batch in epoch] for epoch in islice(loader.virtual_epochs(steps, **options), count)]


def chain(loader: Loader, count: int, **options: Any) -> list[list[int]]:
    """Return the first `count` batches of the endless order."""
    return epochs_of(loader, count, 1, **options)[0]


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(15))
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 6))
def test_every_epoch_has_the_same_number_of_full_batches_without_gaps(count: int, size: int, steps: int) -> None:
    epochs = epochs_of(make(count, size), steps, 3)
    assert [len(epoch) for epoch in epochs] == [steps] * 3
    flat = [index for epoch in epochs for batch in epoch for index in batch]
    assert len(flat) == 3 * steps * size
    passes = [flat[start : start + count] for start in range(0, len(flat) - count + 1, count)]
    assert all(sorted(indices) == list(range(count)) for indices in passes), (
        "every sample comes once before any repeats"
    )
    assert flat == [index for batch in chain(make(count, size), 3 * steps) for index in batch]


def test_the_order_is_that_of_consecutive_ordinary_epochs() -> None:
    loader = make(8, 4)
    ordinary = [batch.tolist() for _ in range(3) for batch in loader]
    assert chain(make(8, 4), 6) == ordinary


def test_epochs_have_a_number_and_a_length() -> None:
    epochs = make().virtual_epochs(3)
    assert iter(epochs) is epochs
    for number in range(3):
        epoch = next(epochs)
        assert (epoch.number, len(epoch)) == (number, 3)
        assert repr(epoch) == f"VirtualEpoch({number}, 3 batches)"
        assert len(list(epoch)) == 3
    assert repr(epochs) == "VirtualEpochs(steps_per_epoch=3)"


def test_an_epoch_left_early_is_over() -> None:
    epochs = make().virtual_epochs(5)
    first = next(epochs)
    taken = [batch.tolist() for batch in islice(first, 2)]
    second = next(epochs)
    assert second.number == 1
    assert list(first) == []
    taken += [batch.tolist() for batch in second]
    assert taken == chain(make(), 7), "no batch is lost"


def test_an_epoch_can_be_continued() -> None:
    epoch = next(make().virtual_epochs(5))
    taken = [batch.tolist() for batch in islice(epoch, 2)] + [batch.tolist() for batch in epoch]
    assert taken == chain(make(), 5)
    assert list(epoch) == []


class Watching:
    """Samples say whether the previous batch has been freed."""

    def __init__(self) -> None:
        self.last: Any = lambda: None

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> bool:
        return self.last() is None


class WatchingStream:
    def __init__(self) -> None:
        self.last: Any = lambda: None

    def __iter__(self) -> Iterator[bool]:
        while True:
            yield self.last() is None


@pytest.mark.parametrize("kind", [Watching, WatchingStream], ids=["samples", "stream"])
def test_a_batch_is_freed_before_the_next_is_made(kind: Any) -> None:
    """Its memory is needed for the next one."""
    dataset = kind()
    batches = iter(next(Loader(dataset, 1, shard=True).virtual_epochs(6)))
    for _ in range(6):
        batch = next(batches)
        assert batch.tolist() == [True]
        dataset.last = weakref.ref(batch)
        del batch


# -- state ---


@settings(deadline=None, max_examples=examples(25))
@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 5))
def test_the_position_is_saved_and_restored(steps: int, epochs_done: int, batches_done: int) -> None:
    batches_done = min(batches_done, steps)
    loader = make()
    epochs = loader.virtual_epochs(steps)
    for _ in range(epochs_done):
        list(next(epochs))
    epoch = next(epochs)
    list(islice(epoch, batches_done))
    state = json.loads(json.dumps(loader.state_dict()))
    expected_number = epoch.number
    rest = [batch.tolist() for batch in epoch]
    if batches_done == steps:
        following = next(epochs)
        expected_number, rest = following.number, [batch.tolist() for batch in following]
    after = [batch.tolist() for batch in next(epochs)]

    other = make()
    other.load_state_dict(state)
    again = other.virtual_epochs(steps)
    epoch = next(again)
    assert epoch.number == expected_number
    assert [batch.tolist() for batch in epoch] == rest
    assert [batch.tolist() for batch in next(again)] == after


@pytest.mark.parametrize("other", [{"workers": 2, "engine": "thread"}, {}])
def test_a_state_can_be_resumed_with_other_workers_and_epoch_lengths(other: dict[str, Any]) -> None:
    loader = make(workers=1, engine="thread")
    epochs = loader.virtual_epochs(3)
    list(next(epochs))
    list(islice(next(epochs), 1))
    state = loader.state_dict()
    del epochs
    resumed = make(**other)
    resumed.load_state_dict(state)
    rest = [batch.tolist() for epoch in islice(resumed.virtual_epochs(2), 2) for batch in epoch]
    assert rest == chain(make(), 7)[4:]


def test_an_iteration_that_another_thread_starts_meanwhile_keeps_its_own_order() -> None:
    plain: list[int] = []

    class Interrupted(DataLoader[Any]):
        is_first = True

        def _get_iterator(self) -> Any:
            if self.is_first:
                self.is_first = False
                other = threading.Thread(target=lambda: plain.extend(len(batch) for batch in self))
                other.start()
                other.join()
            return super()._get_iterator()

    loader = Interrupted(list(range(10)), 4, shuffle=True, seed=2)
    assert len([batch for epoch in islice(loader.virtual_epochs(7), 1) for batch in epoch]) == 7
    assert plain == [4, 4, 2], "an epoch that ends"


def test_a_distant_position_is_reached_at_once() -> None:
    loader = make()
    near = Snapshot.from_dict(chain_state(loader))
    distant = replace(near, order={**near.order, "consumed": 10**15}, virtual=(10**12, 1))
    loader.load_state_dict(distant.as_dict())
    epoch = next(loader.virtual_epochs(3))
    assert epoch.number == 10**12
    assert len(list(epoch)) == 2


def chain_state(loader: Loader) -> dict[str, Any]:
    list(islice(next(loader.virtual_epochs(3)), 1))
    return loader.state_dict()


def test_a_state_of_virtual_epochs_is_rejected_by_a_plain_iteration() -> None:
    state = chain_state(make())
    loader = make()
    loader.load_state_dict(state)
    with pytest.raises(BadState, match="virtual_epochs"):
        iter(loader)
    assert len(list(next(loader.virtual_epochs(3)))) == 2, "the state is kept"


def test_a_plain_iteration_ends_virtual_epochs() -> None:
    loader = make()
    chain_state(loader)
    next(iter(loader))
    assert loader.state_dict()["virtual"] is None


def test_a_state_of_a_plain_iteration_can_be_resumed() -> None:
    loader = make(8, 4)
    next(iter(loader))
    other = make(8, 4)
    other.load_state_dict(loader.state_dict())
    assert chain(other, 3) == chain(make(8, 4), 4)[1:]


# -- ranks ---


def test_ranks_get_different_samples() -> None:
    whole = [index for batch in chain(make(10, 1), 24) for index in batch]
    ranks = [chain(make(10, 4), 3, rank=rank, world_size=2) for rank in range(2)]
    for rank, batches in enumerate(ranks):
        assert [index for batch in batches for index in batch] == whole[rank::2]


def test_another_number_of_ranks_can_resume() -> None:
    loaders = [make(10, 2) for _ in range(2)]
    for rank, loader in enumerate(loaders):
        list(islice(next(loader.virtual_epochs(5, rank=rank, world_size=2)), 3))
    (state,) = {json.dumps(loader.state_dict()) for loader in loaders}
    rest = []
    for rank in range(3):
        loader = make(10, 2)
        loader.load_state_dict(json.loads(state))
        rest.append([index for batch in chain(loader, 2, rank=rank, world_size=3) for index in batch])
    whole = [index for batch in chain(make(10, 1), 24) for index in batch]
    assert rest == [whole[12 + rank :: 3] for rank in range(3)]


def test_a_distributed_sampler_keeps_its_rank() -> None:
    sampler: Any = samplers.distribute(samplers.SequentialSampler(range(6)), 1, 2)
    assert chain(Loader(list(range(6)), 2, sampler=sampler), 3, rank=0, world_size=1) == [[1, 3], [5, 1], [3, 5]]


# -- orders that are not endless themselves --


class Stream:
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def test_other_orders_are_repeated() -> None:
    loader = Loader(Stream(5), 2)
    assert epochs_of(loader, 4, 2) == [[[0, 1], [2, 3], [4], [0, 1]], [[2, 3], [4], [0, 1], [2, 3]]]


@pytest.mark.parametrize("done", range(7))
def test_the_position_in_a_repeated_order_is_saved_and_restored(done: int) -> None:
    def make() -> Loader:
        return Loader(list(range(5)), 2, sampler=[4, 3, 2, 1, 0])

    loader = make()
    list(islice(next(loader.virtual_epochs(7)), done))
    other = make()
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    epoch = next(other.virtual_epochs(7))
    assert epoch.number == 0
    assert [batch.tolist() for batch in epoch] == chain(make(), 7)[done:]


@pytest.mark.parametrize("dataset", [Stream(0), []])
def test_rejects_repeating_an_empty_order(dataset: Any) -> None:
    with pytest.raises(BadOption, match="no batches to repeat"):
        list(next(Loader(dataset, 2).virtual_epochs(3)))


# -- the rest ---


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
def test_rejects_epochs_without_batches(steps: Any) -> None:
    with pytest.raises(BadOption, match="steps_per_epoch"):
        make().virtual_epochs(steps)


def test_closing_the_loader_ends_the_epoch() -> None:
    loader = make(workers=1, engine="thread", persistent=True)
    batches = iter(next(loader.virtual_epochs(3)))
    next(batches)
    loader.close()
    assert list(batches) == []


# -- both loaders ---


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_closing_the_loader_ends_all_virtual_epochs(kind: Any) -> None:
    options = {"persistent" if kind is Loader else "persistent_workers": True}
    loader = kind(list(range(6)), 2, engine="thread", **{"workers" if kind is Loader else "num_workers": 1}, **options)
    epochs = loader.virtual_epochs(2)
    assert [batch.tolist() for batch in next(epochs)] == [[0, 1], [2, 3]]
    loader.close()
    assert list(next(epochs)) == []
    with pytest.raises(StopIteration):
        next(epochs)


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_virtual_epochs_of_a_foreign_order_continue_after_an_exception(kind: Any) -> None:
    class Bad:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise ValueError("three")
            return index

    epochs = kind(Bad(), 2, sampler=list(range(6))).virtual_epochs(2)
    seen: list[Any] = []
    failures = 0
    for _ in range(6):
        epoch = next(epochs)
        try:
            seen.extend(batch.tolist() for batch in epoch)
        except ValueError:
            failures += 1
    assert failures > 1
    assert seen[:4] == [[0, 1], [4, 5], [0, 1], [4, 5]], "only the bad batch is missing, and none comes twice"


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_virtual_epochs_of_two_ranks_without_a_seed_are_disjoint(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        torch.manual_seed(rank)
        loader = kind(list(range(40)), 2, shuffle=True)
        seen += [index for batch in next(loader.virtual_epochs(10)) for index in batch.tolist()]
    assert sorted(seen) == list(range(40))
