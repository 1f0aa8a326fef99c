"""Properties of every sampler of indices: the order is a function of positions, and equals that of iteration."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.abc import Sampler
from feedline.samplers import (
    BalancedSampler,
    BlockSampler,
    DistributedSampler,
    InfiniteSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    distribute,
)
from feedline.types import Key
from tests.sampling import examples

torch = pytest.importorskip("torch")

Maker = Callable[[int], Sampler]
MAKERS: dict[str, Maker] = {
    "sequential": lambda n: SequentialSampler(range(n)),
    "random": lambda n: RandomSampler(range(n), seed=1),
    "random passes": lambda n: RandomSampler(range(n), num_samples=3 * n + 1, seed=1),
    "random part": lambda n: RandomSampler(range(n), num_samples=max(1, n // 2), seed=1),
    "replacement": lambda n: RandomSampler(range(n), replacement=True, num_samples=2 * n, seed=1),
    "subset": lambda n: SubsetRandomSampler(np.arange(n) * 3, seed=1),
    "weighted": lambda n: WeightedRandomSampler(np.arange(n) + 0.5, n + 5, seed=1),
    "weighted order": lambda n: WeightedRandomSampler(np.arange(n) + 0.5, n, False, seed=1),
    "blocks": lambda n: BlockSampler([7] * (n // 7) + [n % 7], window=3, seed=1),
    "balanced": lambda n: BalancedSampler([i % 3 for i in range(n)], seed=1),
    "infinite": lambda n: InfiniteSampler(range(n), seed=1),
    "infinite in order": lambda n: InfiniteSampler(range(n), shuffle=False),
    "distributed": lambda n: DistributedSampler(range(n), 3, 1, seed=1),
    "distributed endless": lambda n: _index_level(InfiniteSampler(range(n), seed=1)),
    "distributed foreign": lambda n: _index_level(torch.utils.data.RandomSampler(range(n))),
}


def _index_level(sampler: object) -> Sampler:
    shared = distribute(sampler, 1, 3)  # type: ignore[arg-type]
    assert isinstance(shared, Sampler)
    return shared


@pytest.fixture(params=MAKERS, ids=str)
def make(request: pytest.FixtureRequest) -> Maker:
    return MAKERS[request.param]


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize("name", MAKERS)
def test_at_equals_iteration_for_any_positions(name: str, data: st.DataObject) -> None:
    sampler = MAKERS[name](data.draw(st.integers(1, 60) | st.just(1500), label="samples"))
    sampler.set_epoch(data.draw(st.integers(0, 3), label="epoch"))
    key = Key(sampler.draw_seed(), sampler.epoch)
    epoch = list(islice(sampler, 5000))
    assert sampler.size() in (None, len(epoch))
    places = data.draw(st.lists(st.integers(0, len(epoch) - 1)) if epoch else st.just([]), label="places")
    found = sampler.at(np.array(places, np.int64), key)
    assert found.dtype == np.int64
    assert found.tolist() == [epoch[place] for place in places]


def test_epochs_advance_by_iteration_and_by_set_epoch(make: Maker) -> None:
    sampler = make(200)
    epochs = [list(islice(sampler, 600)) for _ in range(3)]
    assert sampler.epoch == 3
    in_order = make in (MAKERS["sequential"], MAKERS["infinite in order"])
    assert len({tuple(epoch) for epoch in epochs}) == (1 if in_order else 3)
    sampler.set_epoch(1)
    assert list(islice(sampler, 600)) == epochs[1]
    assert list(islice(sampler, 600)) == epochs[2]


def test_an_unpickled_sampler_has_the_same_order(make: Maker) -> None:
    sampler = make(100)
    twin = pickle.loads(pickle.dumps(sampler))
    places = np.arange(20)
    assert np.array_equal(sampler.at(places, Key(5, 2)), twin.at(places, Key(5, 2)))


def test_the_description_is_short_json_and_differs_by_size(make: Maker) -> None:
    text = json.dumps(make(100).describe())
    assert json.dumps(make(100).describe()) == text
    assert json.dumps(make(101).describe()) != text
    assert len(text) < 200


def test_torchs_loader_accepts_every_sampler(make: Maker) -> None:
    loader = torch.utils.data.DataLoader(range(1000), batch_size=4, sampler=make(30))
    first = next(iter(loader))
    assert first.tolist() == list(islice(make(30), 4))
