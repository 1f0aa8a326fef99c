"""Iterating over the sampler of a seeded loader yields the indices that the loader delivers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from feedline import DataLoader, samplers  # noqa: E402

SIZE = 23
DATA: Any = range(SIZE)
LENGTHS = [1 + index % 5 for index in range(SIZE)]


def shared_batches() -> Any:
    return samplers.distribute(samplers.LengthBucketBatchSampler(LENGTHS, 4), 1, 2)


MAKERS: dict[str, Callable[..., Any]] = {
    "shuffled": lambda **more: DataLoader(DATA, 4, shuffle=True, **more),
    "weighted": lambda **more: DataLoader(DATA, 4, sampler=samplers.WeightedRandomSampler(LENGTHS, SIZE), **more),
    "share": lambda **more: DataLoader(
        DATA, 4, sampler=samplers.distribute(samplers.RandomSampler(range(SIZE)), 1, 2), **more
    ),
    "torch's batches": lambda **more: DataLoader(
        DATA, batch_sampler=torch.utils.data.BatchSampler(samplers.RandomSampler(range(SIZE)), 4, False), **more
    ),
    "shared batches": lambda **more: DataLoader(DATA, batch_sampler=shared_batches(), **more),
}


@pytest.fixture(params=MAKERS, ids=str)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return MAKERS[request.param]


def delivered(loader: Any) -> list[int]:
    return [index for batch in loader for index in torch.atleast_1d(torch.as_tensor(batch)).tolist()]


def test_the_sampler_yields_the_delivered_indices(make: Callable[..., Any]) -> None:
    loader, untouched = make(seed=1), make(seed=1)
    first = list(loader.sampler)
    assert list(loader.sampler) == first == delivered(loader) == delivered(untouched)
    assert list(loader.sampler) == first, "the last delivered epoch"
    second = delivered(loader)
    assert second == delivered(untouched), "iterating over the sampler does not affect the loader"
    assert list(loader.sampler) == second != first


def test_the_sampler_follows_set_epoch(make: Callable[..., Any]) -> None:
    of_loader, of_sampler = make(seed=1), make(seed=1)
    of_loader.set_epoch(5)
    of_sampler.sampler.set_epoch(5)
    expected = list(of_loader.sampler)
    assert list(of_sampler.sampler) == expected
    assert delivered(of_loader) == delivered(of_sampler) == expected
    assert expected != list(make(seed=1).sampler)


def test_the_sampler_follows_a_loaded_state(make: Callable[..., Any]) -> None:
    loader, resumed = make(seed=1), make(seed=1)
    delivered(loader)
    batches = iter(loader)
    next(batches)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed.sampler) == list(loader.sampler)
    rest = [index for batch in batches for index in torch.atleast_1d(torch.as_tensor(batch)).tolist()]
    assert delivered(resumed) == rest == list(loader.sampler)[-len(rest) :]


class Wrapping(torch.utils.data.BatchSampler):  # type: ignore[name-defined, misc]  # torch may be missing
    """A custom batch sampler around one of ours."""


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_differ_behind_a_custom_batch_sampler(workers: int) -> None:
    plain = DataLoader(DATA, 4, shuffle=True, seed=1)
    expected = [delivered(plain) for _ in range(4)]
    batches = Wrapping(samplers.RandomSampler(range(SIZE)), 4, False)
    loader = DataLoader(DATA, batch_sampler=batches, seed=1, num_workers=workers)
    assert [delivered(loader) for _ in range(3)] == expected[:3]
    loader.set_epoch(1)
    assert delivered(loader) == expected[1]
    loader.set_epoch(2)
    iterator = iter(loader)
    head = [index for _ in range(2) for index in next(iterator).tolist()]
    state = loader.state_dict()
    other = DataLoader(DATA, batch_sampler=Wrapping(samplers.RandomSampler(range(SIZE)), 4, False), seed=1)
    other.load_state_dict(state)
    assert head + delivered(other) == expected[2]
    assert delivered(other) == expected[3]
    loader.close()


SHARES: dict[str, Callable[[int], Any]] = {
    "distributed": lambda seed: samplers.DistributedSampler(range(SIZE), 2, 1, seed=seed),
    "share": lambda seed: samplers.distribute(samplers.RandomSampler(range(SIZE), seed=seed), 1, 2),
    "batches": lambda seed: samplers.distribute(samplers.LengthBucketBatchSampler(LENGTHS, 4, seed=seed), 1, 2),
}


@pytest.mark.parametrize("name", SHARES)
def test_a_seed_assigned_to_a_share_is_followed_by_the_loader(name: str) -> None:
    sampler = SHARES[name](1)
    option = {"batch_sampler": sampler} if name == "batches" else {"sampler": sampler, "batch_size": 4}
    loader = DataLoader(DATA, **option)
    first = delivered(loader)
    sampler.seed = 9
    sampler.set_epoch(0)
    expected = [int(index) for item in SHARES[name](9) for index in ([item] if isinstance(item, int) else item)]
    assert delivered(loader) == expected != first
    assert loader.state_dict()["seed"] == sampler.seed == 9
