"""`BalancedBatches`: what its arguments mean, what it rejects, and how it meets loaders, ranks and epochs."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest

from feedline import DataLoader, Loader
from feedline.errors import BadOption, BadState
from feedline.samplers import BalancedBatches, distribute
from feedline.types import Key

COSTS = [1 + index * index % 17 for index in range(67)]


def world(count: int, **options: Any) -> list[BalancedBatches]:
    options = {"costs": COSTS, "batch_size": 3, "window": 4, "seed": 1, **options}
    return [BalancedBatches(rank=rank, world_size=count, **options) for rank in range(count)]


def indices_of(ranks: list[BalancedBatches]) -> list[int]:
    return [index for rank in ranks for batch in rank for index in batch]


@pytest.mark.parametrize("options", [{}, {"shuffle": False, "seed": None}, {"micro_batches": 2}])
def test_ranks_share_an_epoch(options: dict[str, Any]) -> None:
    assert sorted(indices_of(world(4, tail="exact", **options))) == list(range(67))
    assert Counter(indices_of(world(4, tail="pad", **options))).total() == 68
    assert len(set(indices_of(world(4, tail="drop", **options)))) == 64


def test_every_rank_has_as_many_batches_as_len_says() -> None:
    for tail in ("pad", "drop", "exact"):
        for drop_last in (False, True):
            if tail == "exact" and drop_last:
                continue
            ranks = world(4, tail=tail, drop_last=drop_last)
            assert {len(list(rank)) for rank in ranks} == {len(ranks[0])}
            if drop_last:
                assert {len(batch) for rank in ranks for batch in rank} == {3}


def test_ranks_without_a_seed_share_an_order() -> None:
    """Each would draw its own seed otherwise, and samples would be lost."""
    assert sorted(indices_of(world(4, seed=None, tail="exact"))) == list(range(67))
    loaders = [Loader(list(range(67)), batch_sampler=rank) for rank in world(4, seed=None, tail="exact")]
    assert sorted(int(index) for loader in loaders for batch in loader for index in batch) == list(range(67))


def test_a_sample_moves_at_most_by_a_window() -> None:
    ranks = world(2, costs=COSTS[:66], shuffle=False)
    epoch = np.concatenate([np.concatenate(step) for step in zip(*ranks, strict=True)])
    assert 4 < np.abs(epoch - np.arange(66)).max() < 4 * 2 * 3


def test_micro_batches_of_a_rank_cost_the_same() -> None:
    costs = np.random.default_rng(0).lognormal(0, 0.7, 4 * 8 * 64)
    ranks = [list(BalancedBatches(costs, 8, micro_batches=4, rank=rank, world_size=4, seed=1)) for rank in range(4)]
    loads = np.array([[costs[batch].sum() for batch in rank] for rank in ranks]).reshape(4, -1, 4)
    assert (loads.max((0, 2)) / loads.mean((0, 2))).mean() < 1.02


def test_distribute_gives_it_the_rank() -> None:
    whole = BalancedBatches(COSTS, 3, window=4, seed=1)
    ranks = [distribute(whole, rank, 4, tail="exact") for rank in range(4)]
    assert [list(rank) for rank in ranks] == [list(rank) for rank in world(4, tail="exact")]
    with pytest.raises(BadOption, match="already yields the batches of one rank"):
        distribute(world(4)[0], 1, 4)


def test_a_sharded_loader_gives_it_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sampler = BalancedBatches(COSTS, 3, window=4, seed=1)
    loader = Loader(list(range(67)), batch_sampler=sampler, shard=True)
    assert [batch.tolist() for batch in loader] == list(world(4)[2])


def test_a_loader_with_a_data_rank_gives_it_that_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that need the same batches have a rank in the job that is not their data rank."""
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    sampler = BalancedBatches(COSTS, 3, window=4, seed=1)
    loader = Loader(list(range(67)), batch_sampler=sampler, rank=2, world_size=4)
    assert [batch.tolist() for batch in loader] == list(world(4)[2])
    assert len(loader) == len(world(4)[2])
    with pytest.raises(BadOption, match="rank 1 of 2"):
        Loader(list(range(67)), batch_sampler=world(2)[1], rank=2, world_size=4)


def test_the_rank_is_found_when_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = BalancedBatches(COSTS, 3, window=4, seed=1)
    assert sampler.num_replicas == 1
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert list(sampler) == list(world(4)[2])


def test_batches_of_any_number_equal_those_of_iteration() -> None:
    sampler = world(3)[1]
    epoch = list(world(3)[1])
    assert [sampler.batch(number, Key(1, 0)).tolist() for number in reversed(range(len(epoch)))] == epoch[::-1]
    with pytest.raises(IndexError):
        sampler.batch(len(epoch), Key(1, 0))


def test_len_is_an_estimate_with_max_cost() -> None:
    ranks = world(3, batch_size=None, max_cost=40)
    counts = {len(list(rank)) for rank in ranks}
    assert len(counts) == 1
    assert abs(counts.pop() - len(ranks[0])) <= 2


def test_limits_of_several_kinds_are_kept() -> None:
    costs = {"text": np.array(COSTS), "images": np.array(COSTS[::-1])}
    ranks = world(2, costs=costs, batch_size=None, max_cost={"images": 50, "text": 40})
    for batch in itertools.chain(*ranks):
        assert costs["text"][batch].sum() <= 40
        assert costs["images"][batch].sum() <= 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": None}, "either batch_size or max_cost"),
        ({"max_cost": 20}, "either batch_size or max_cost"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"window": 0}, "window=0"),
        ({"micro_batches": 0}, "micro_batches=0"),
        ({"batch_size": None, "max_cost": -1}, "not a positive number"),
        ({"batch_size": None, "max_cost": 3}, "Sample 4 costs 17, more than max_cost=3"),
        ({"batch_size": None, "max_cost": [20, 20]}, "1 kinds"),
        ({"batch_size": None, "max_cost": {"text": 20}}, "kinds"),
        ({"batch_size": None, "max_cost": 20, "drop_last": True}, "drop_last"),
        ({"tail": "even"}, "tail='even'"),
    ],
)
def test_rejects_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        world(2, **options)


def test_rejects_a_sample_that_a_function_says_costs_too_much() -> None:
    ranks = world(2, costs=lambda index: COSTS[index], num_samples=67, batch_size=None, max_cost=16)
    with pytest.raises(BadOption, match="more than max_cost"):
        list(ranks[0])


def test_rejects_fewer_samples_than_ranks() -> None:
    with pytest.raises(BadOption, match="fewer than 4 ranks"):
        list(world(4, costs=[1, 2, 3], tail="drop")[0])
    with pytest.raises(BadOption, match="exact"):
        list(world(4, costs=[1, 2, 3], tail="exact")[0])
    assert indices_of(world(4, costs=[1, 2, 3], tail="pad"))


@pytest.mark.parametrize("options", [{}, {"batch_size": None, "max_cost": 40}])
def test_virtual_epochs_continue_with_another_number_of_ranks(options: dict[str, Any]) -> None:
    def loaders(count: int) -> list[Any]:
        ranks = world(count, costs=COSTS * 3, tail="exact", **options)
        return [Loader(list(range(201)), batch_sampler=rank) for rank in ranks]

    taken: list[int] = []
    state: Any = None
    for count in (3, 2, 4):
        ranks = loaders(count)
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
            epoch = next(iter(loader.virtual_epochs(5)))
            taken += [int(index) for batch in itertools.islice(epoch, 2) for index in batch]
        states = [{**loader.state_dict(), "draw_seed": 0, "checksum": 0} for loader in ranks]
        assert states.count(states[0]) == count
        state = json.loads(json.dumps(ranks[0].state_dict()))
    assert max(Counter(taken).values()) == 1, "fewer than an epoch, so none may come twice"


def test_a_state_continues_with_other_batches() -> None:
    def loaders(count: int, **options: Any) -> list[Any]:
        return [DataLoader(list(range(67)), batch_sampler=rank) for rank in world(count, tail="exact", **options)]

    before = loaders(3)
    taken = [index for loader in before for batch in itertools.islice(loader, 3) for index in batch.tolist()]
    for options in ({"batch_size": 5, "window": 2}, {"batch_size": None, "max_cost": 30}):
        after = loaders(2, **options)
        for loader in after:
            loader.load_state_dict(before[0].state_dict())
        rest = [index for loader in after for batch in loader for index in batch.tolist()]
        assert sorted(taken + rest) == list(range(67))


def test_a_state_does_not_fit_other_costs_or_another_kind_of_order() -> None:
    loader = DataLoader(list(range(67)), batch_sampler=world(2)[0])
    next(iter(loader))
    for options in ({"costs": COSTS[::-1]}, {"shuffle": False}):
        other = DataLoader(list(range(67)), batch_sampler=world(2, **options)[0])
        with pytest.raises(BadState):
            other.load_state_dict(loader.state_dict())


def test_set_epoch_selects_the_order_and_each_iteration_is_another() -> None:
    ranks = world(2)
    epochs = [[list(rank) for rank in ranks] for _ in range(2)]
    assert epochs[0] != epochs[1]
    for rank, first in zip(ranks, epochs[0], strict=True):
        rank.set_epoch(0)
        assert list(rank) == first
    loader = DataLoader(list(range(67)), batch_sampler=ranks[0])
    loader.set_epoch(1)
    assert [batch.tolist() for batch in loader] == epochs[1][0]


def test_a_pickled_sampler_yields_the_same() -> None:
    sampler = world(2)[1]
    first = list(sampler)
    sampler.set_epoch(0)
    assert list(pickle.loads(pickle.dumps(sampler))) == first
    assert "BalancedBatches(67 samples, batch_size=3, window=4, rank=1, world_size=2" in repr(sampler)


def test_large_datasets_are_entered_at_once_and_take_no_memory() -> None:
    costs = np.ones(10_000_000, np.uint8)
    sampler = BalancedBatches(costs, 8, rank=3, world_size=64, seed=1, tail="drop")
    assert len(sampler) == 10_000_000 // 64 // 8 + 1
    assert len(sampler.batch(15_000, Key(1, 0))) == 8


@pytest.mark.parametrize("loader", [DataLoader, Loader])
@pytest.mark.parametrize("samples", [66, 68])
def test_a_loader_rejects_costs_of_another_number_of_samples(loader: Any, samples: int) -> None:
    with pytest.raises(BadOption, match=f"67 samples, and the dataset has {samples}"):
        loader(range(samples), batch_sampler=BalancedBatches(COSTS, 3))
    assert len(loader(range(67), batch_sampler=BalancedBatches(COSTS, 3))) == 23
