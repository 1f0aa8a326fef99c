"""Merging states of several ranks, and resuming streams with other numbers of ranks and workers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline import DataLoader, Loader, samplers
from feedline.datasets import mix
from feedline.errors import BadState
from feedline.types import EngineName
from tests.delivery.state.rank_worlds import BATCH, COUNT, Make, Place, World, flat, sources_in
from tests.sampling import examples

# Any, throughout: datasets, loaders and states.


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Make]:
    return sources_in(tmp_path_factory.mktemp("sources"))


SPLIT = ["tar", "tar, in order", "tar, wide buffer", "sql", "sql, keys that are text"]


def uneven(rank: int) -> int:
    return (rank * 5 + 3) % 4


@pytest.mark.parametrize("name", ["tar", "sql, keys that are text"])
def test_each_sample_comes_once_whatever_the_number_of_workers(
    sources: dict[str, Make], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources[name], monkeypatch)
    for workers in (0, 1, 3):
        before, state = world.go((2, workers), None, uneven)
        for later in ((1, 0), (2, 1), (2, 3), (3, 1)):
            after = world.rest(later, state)
            assert sorted(flat(before) + after) == list(range(COUNT)), f"{workers} workers, then {later}"


places = st.sampled_from([(1, 0), (2, 0), (3, 0), (4, 0), (8, 0), (1, 1), (2, 3), (3, 1)])
legs = st.lists(st.tuples(places, st.lists(st.integers(0, 9), min_size=8, max_size=8)), min_size=1, max_size=4)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(40))
@given(name=st.sampled_from(SPLIT), legs=legs, last=places)
def test_resuming_repeatedly_at_random_moments(
    sources: dict[str, Make], name: str, legs: list[tuple[Place, list[int]]], last: Place
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = World(sources[name], patch)
        came, state = list[int](), None
        for place, steps in legs:
            found, state = world.go(place, state, steps.__getitem__)
            came += flat(found)
            if all(each["ended"] for each in state.get("ranks", [state])):
                break
        assert sorted(came + world.rest(last, state)) == list(range(COUNT))


@pytest.mark.parametrize(
    ("name", "place"),
    [("tar", (2, 3)), ("tar, in order", (3, 0)), ("tar, wide buffer", (1, 0)), ("sql", (2, 3)), (SPLIT[-1], (3, 0))],
)
def test_the_same_ranks_and_workers_resume_with_exactly_the_same_batches(
    sources: dict[str, Make], name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources[name], monkeypatch)
    whole, _ = world.go(place, None, lambda _: None)
    before, state = world.go(place, None, lambda _: 2)
    after, _ = world.go(place, state, lambda _: None)
    assert [one + other for one, other in zip(before, after, strict=True)] == whole
    for rank in range(place[0]):  # also each from its own state
        loader = world.loader(rank, place)
        loader.load_state_dict(state["ranks"][rank] if "ranks" in state else state)
        assert [int(number) for batch in loader for number in batch] == after[rank]


@pytest.mark.parametrize("engine", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_merged_state_loads_into_a_torch_dataloader_with_real_workers(
    sources: dict[str, Make], engine: EngineName, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources["tar"], monkeypatch)
    before, state = world.go((2, 0), None, lambda _: 4)
    found = flat(before)
    for rank in range(3):
        world.loader(rank, (3, 0))  # sets the environment
        loader = DataLoader(sources["tar"](), BATCH, num_workers=2, engine=engine)
        loader.load_state_dict(state)
        found += torch.cat(list(loader)).tolist()
    assert sorted(found) == list(range(COUNT))


def test_the_epoch_after_a_resumed_one_is_split_over_the_new_ranks(
    sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources["tar"], monkeypatch)
    _, state = world.go((4, 0), None, lambda _: 2)
    for rank in range(2):
        fresh, resumed = world.loader(rank, (2, 0)), world.loader(rank, (2, 0))
        resumed.load_state_dict(state)
        expected = [[list(map(int, batch)) for batch in fresh] for _ in range(3)]
        rest, *others = [[list(map(int, batch)) for batch in resumed] for _ in range(3)]
        assert rest != expected[0]
        assert others == expected[1:]


def test_skipped_samples_stay_skipped(sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(number: int) -> int:
        if number % 7 == 0:
            raise ValueError(number)
        return number

    def make() -> Any:
        dataset = sources["tar"]()
        dataset.transform = fails
        return dataset

    world = World(make, monkeypatch, on_error="skip")
    before, state = world.go((3, 0), None, lambda _: 3)
    after = world.rest((2, 1), state)
    assert sorted(flat(before) + after) == [number for number in range(COUNT) if number % 7]


def test_drop_last_drops_at_most_one_incomplete_batch_per_rank(
    sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources["tar"], monkeypatch, drop_last=True)
    before, state = world.go((2, 1), None, lambda _: 3)
    found = flat(before) + world.rest((3, 0), state)
    assert len(set(found)) == len(found) > COUNT - 3 * BATCH


def test_virtual_epochs_resume_at_their_place(sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(sources["tar"], monkeypatch)
    came, states = list[int](), []
    for rank in range(2):
        loader = world.loader(rank, (2, 0))
        for epoch in itertools.islice(loader.virtual_epochs(4), 2):
            for batch in itertools.islice(epoch, 4 if epoch.number == 0 else 2):
                came += map(int, batch)
        states.append(loader.state_dict())
    loader = world.loader(0, (1, 0))
    loader.load_state_dict(feedline.merge_states(states))
    first = next(loader.virtual_epochs(4))
    assert first.number == 1
    rest = [int(number) for batch in first for number in batch]
    assert len(rest) == 2 * BATCH
    assert not set(rest) & set(came)


def test_merging_needs_the_states_of_all_ranks_in_order(
    sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources["tar"], monkeypatch)
    _, state = world.go((3, 0), None, lambda _: 2)
    states = state["ranks"]
    for wrong in (states[:2], states[::-1]):
        with pytest.raises(BadState, match="states of all ranks, each once"):
            feedline.merge_states(wrong)
    for wrong in ([], states[0]):
        with pytest.raises(BadState, match="Give merge_states a list"):
            feedline.merge_states(wrong)
    with pytest.raises(BadState, match="no 'feedline'"):
        feedline.merge_states([{}])
    loader = world.loader(1, (2, 0))
    loader.load_state_dict(states[1])
    with pytest.raises(BadState, match=r"rank 1 of 3.*merge_states"):
        iter(loader)


def test_a_loaded_merged_state_is_saved_unchanged_before_iteration_starts(
    sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources["tar"], monkeypatch)
    before, state = world.go((3, 0), None, lambda _: 2)
    loaders = [world.loader(rank, (2, 0)) for rank in range(2)]
    for loader in loaders:
        loader.load_state_dict(state)
    states = [loader.state_dict() for loader in loaders]
    assert feedline.merge_states(states) == state
    world.loader(1, (2, 0))
    next(iter(loaders[1]))
    with pytest.raises(BadState, match="rank 0 is a merged state"):
        feedline.merge_states([states[0], loaders[1].state_dict()])
    assert sorted(flat(before) + world.rest((2, 0), state)) == list(range(COUNT))


def test_ranks_in_different_epochs_cannot_be_resharded(
    sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources["tar"], monkeypatch)
    states = []
    for rank in range(2):
        loader = world.loader(rank, (2, 0))
        for epoch in range(2 - rank):
            list(itertools.islice(loader, None if epoch == 0 and rank == 0 else 2))
        states.append(loader.state_dict())
    merged = feedline.merge_states(states)
    loader = world.loader(0, (1, 0))
    loader.load_state_dict(merged)
    with pytest.raises(BadState, match=r"rank 0 in 1, rank 1 in 0.*shard='drop'"):
        iter(loader)
    same = world.loader(1, (2, 0))
    same.load_state_dict(merged)
    assert list(same)


def test_states_that_skip_steps_cannot_be_resharded(sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(sources["tar"], monkeypatch)
    world.loader(0, (1, 0))
    loader = DataLoader(sources["tar"](), BATCH, num_workers=1, engine="thread", snapshot_every_n_steps=4)
    list(itertools.islice(loader, 5))
    other = world.loader(0, (1, 0))
    state = loader.state_dict()
    assert state["streams"][0]["batches"] == 5
    loader = DataLoader(sources["tar"](), BATCH, num_workers=2, engine="thread")
    loader.load_state_dict(state)
    with pytest.raises(BadState, match="snapshot_every_n_steps=1"):
        iter(loader)
    other.load_state_dict(state)  # one stream, as before
    assert list(other)


def test_other_datasets_that_split_themselves_need_the_same_number_of_ranks(
    sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(lambda: mix([sources["tar"](), list(range(1000, 1050))]), monkeypatch)
    _, state = world.go((2, 0), None, lambda _: 2)
    assert world.rest((2, 0), state)
    with pytest.raises(BadState, match=r"2 ranks.*only streams of tar shards, of TFRecord files"):
        world.rest((3, 0), state)


def test_ranks_of_one_order_have_one_state() -> None:
    before, states = list[int](), []
    for rank in range(2):
        loader = DataLoader(range(20), 2, sampler=samplers.DistributedSampler(range(20), 2, rank, seed=1))
        before += torch.cat(list(itertools.islice(loader, 3))).tolist()
        states.append(loader.state_dict())
    merged = feedline.merge_states(states)
    for rank in range(3):
        sampler = samplers.DistributedSampler(range(20), 3, rank, seed=1, tail="exact")
        loader = DataLoader(range(20), 2, sampler=sampler)
        loader.load_state_dict(merged)
        before += torch.cat(list(loader)).tolist()
    assert sorted(before) == list(range(20))
    assert feedline.merge_states([states[0]] * 2) == states[0]


def test_ranks_at_different_steps_need_the_same_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for rank in range(2):
        loader = DataLoader(range(20), 2, sampler=samplers.DistributedSampler(range(20), 2, rank, seed=1))
        list(itertools.islice(loader, 3 + rank))
        states.append(loader.state_dict())
    merged = feedline.merge_states(states)
    loader = DataLoader(range(20), 2, sampler=samplers.DistributedSampler(range(20), 2, 1, seed=1))
    loader.load_state_dict(merged)
    with pytest.raises(BadState, match="2 ranks, each with a state of its own, and there are 1"):
        iter(loader)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader.load_state_dict(merged)
    assert len(list(loader)) == 1


@pytest.mark.parametrize("damage", [[], [1], ["x"], None, [{"feedline": 1, "ranks": []}]])
def test_damaged_merged_states_are_rejected(damage: Any) -> None:
    with pytest.raises(BadState):
        Loader([1, 2], 1).load_state_dict({"feedline": 1, "ranks": damage})
