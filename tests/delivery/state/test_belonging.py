"""Which states can be merged: those of all ranks, each once, after the same step."""

from __future__ import annotations

import itertools

import pytest

import feedline
from feedline import DataLoader, Loader, samplers
from feedline.errors import BadState
from tests.delivery.state.rank_worlds import BATCH, COUNT, Make, World, flat, sources_in

# Any, throughout: states.


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Make]:
    return sources_in(tmp_path_factory.mktemp("sources"))


@pytest.mark.parametrize(("workers", "steps"), [(0, None), (0, 0), (2, 2)])
def test_the_state_of_a_rank_names_it_at_every_moment(
    sources: dict[str, Make], workers: int, steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources["tar"], monkeypatch)
    _, states = world.legs((2, workers), None, lambda _: steps)
    assert [state["order"]["rank"] for state in states] == [[0, 2], [1, 2]]
    assert [state["ended"] for state in states] == [steps is None] * 2
    with pytest.raises(BadState, match="ranks 0 of 2, 0 of 2"):
        feedline.merge_states([states[0]] * 2)
    with pytest.raises(BadState, match="ranks 1 of 2"):
        feedline.merge_states(states[1:])
    _, others = world.legs((3, workers), None, lambda _: steps)
    with pytest.raises(BadState, match="ranks 0 of 3, 1 of 2, 2 of 3"):
        feedline.merge_states([others[0], states[1], others[2]])


def test_a_state_saved_at_the_end_works_for_all_ranks(
    sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources["tar"], monkeypatch, seed=5)
    _, states = world.legs((3, 0), None, lambda _: None)
    merged = feedline.merge_states(states)
    assert "ranks" not in merged
    for state in (states[1], merged):  # one saved by a single rank, and the merged one
        again = []
        for rank in range(2):
            loader = world.loader(rank, (2, 0))
            loader.load_state_dict(state)
            again.append(loader.state_dict())
        both = feedline.merge_states(again)
        assert (both["epoch"], both["ended"]) == (0, True)
        came, states_of_next = world.legs((2, 0), both, lambda _: None)
        assert sorted(flat(came)) == list(range(COUNT))
        assert {each["epoch"] for each in states_of_next} == {1}


def test_states_of_different_epochs_are_not_merged() -> None:
    loaders = [
        DataLoader(range(20), BATCH, sampler=samplers.DistributedSampler(range(20), 2, rank), seed=1)
        for rank in range(2)
    ]
    states = [[loader.state_dict() for _ in range(2) if len(list(loader))] for loader in loaders]
    for epoch in range(2):
        assert feedline.merge_states([one[epoch] for one in states])["epoch"] == epoch
    with pytest.raises(BadState, match="rank 0 at the end of epoch 0, rank 1 at the end of epoch 1"):
        feedline.merge_states([states[0][0], states[1][1]])


def test_states_of_different_virtual_steps_are_not_merged(
    sources: dict[str, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sources["tar"], monkeypatch)
    states = []
    for rank in range(2):
        loader: Loader = world.loader(rank, (2, 0))
        list(itertools.islice(next(loader.virtual_epochs(4)), 2 + rank))
        states.append(loader.state_dict())
    with pytest.raises(BadState, match="rank 0 after batch 2 of virtual epoch 0, rank 1 after batch 3"):
        feedline.merge_states(states)
