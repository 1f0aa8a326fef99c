"""`set_epoch` works until the first batch is requested, since frameworks create the iterator earlier."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

import feedline
from feedline import DataLoader, Loader, samplers
from feedline.errors import StateWarning
from tests.order import datasets
from tests.order.facts import all_bytes, through_json, values

pytestmark = pytest.mark.sample(12)

N = 20
WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "engine": "thread"},
    {"num_workers": 2, "persistent_workers": True},
]


def random_sampler() -> Any:
    return samplers.RandomSampler(range(N), seed=3)


def torchs_sampler() -> Any:
    return torch_data.DistributedSampler(range(N), 2, 1, seed=3)  # type: ignore[arg-type]


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "the loader's own": lambda: {"shuffle": True, "seed": 3, "batch_size": 4},
    "a sampler": lambda: {"sampler": random_sampler(), "batch_size": 4},
    "a share": lambda: {"sampler": samplers.DistributedSampler(range(N), 2, 1, seed=3), "batch_size": 4},
    "batches": lambda: {"batch_sampler": samplers.LengthBucketBatchSampler(range(1, N + 1), 4, seed=3)},
    "torch's": lambda: {"sampler": torchs_sampler(), "batch_size": 4},
    "torch's, single samples": lambda: {"sampler": torchs_sampler(), "batch_size": None},
    "torch's batches": lambda: {"batch_sampler": torch_data.BatchSampler(torchs_sampler(), 4, False)},
}


def make(kind: str, **options: Any) -> Any:
    return DataLoader(datasets.Sized(N), **KINDS[kind](), **options)


def sampler_of(loader: Any) -> Any:
    """Return the sampler on which a framework would call `set_epoch`."""
    found = (loader.batch_sampler, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return next(sampler for sampler in found if hasattr(sampler, "set_epoch"))


def epochs_of(kind: str, count: int) -> list[Any]:
    loader = make(kind)
    found = []
    for epoch in range(count):
        sampler_of(loader).set_epoch(epoch)
        found.append(values(loader))
    return found


@pytest.mark.parametrize("workers", WORKERS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_set_epoch_of_the_sampler_after_iter(kind: str, workers: dict[str, Any]) -> None:
    epochs = epochs_of(kind, 4)
    loader = make(kind, **workers)
    batches = iter(loader)
    sampler_of(loader).set_epoch(2)
    assert values(batches) == epochs[2]
    sampler_of(loader).set_epoch(3)
    assert values(loader) == epochs[3]
    loader.close()


@pytest.mark.parametrize("workers", WORKERS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_set_epoch_of_the_loader_after_iter_and_the_last_call_counts(kind: str, workers: dict[str, Any]) -> None:
    epochs = epochs_of(kind, 4)
    loader = make(kind, **workers)
    batches = iter(loader)
    loader.set_epoch(3)
    loader.set_epoch(1)
    assert values(batches) == epochs[1]
    loader.close()


@pytest.mark.parametrize("kind", ["a sampler", "torch's"])
def test_set_epoch_after_the_first_batch_applies_to_the_next_iteration(kind: str) -> None:
    epochs = epochs_of(kind, 4)
    loader = make(kind)
    batches = iter(loader)
    first = values([next(batches)])
    sampler_of(loader).set_epoch(3)
    assert first + values(batches) == epochs[0]
    assert values(loader) == epochs[3]


def test_counting_continues_from_a_late_set_epoch() -> None:
    epochs = epochs_of("a sampler", 5)
    loader = make("a sampler")
    batches = iter(loader)
    loader.sampler.set_epoch(2)
    assert values(batches) == epochs[2]
    assert [values(loader), values(loader)] == epochs[3:]


def test_set_epoch_with_the_current_epoch_changes_nothing() -> None:
    epochs = epochs_of("a sampler", 3)
    loader = make("a sampler", num_workers=1, engine="thread")
    for epoch in range(3):
        batches = iter(loader)
        loader.sampler.set_epoch(epoch)
        assert values(batches) == epochs[epoch]


def test_set_epoch_applies_only_to_the_last_started_iteration() -> None:
    epochs = epochs_of("a sampler", 6)
    loader = make("a sampler")
    first, second = iter(loader), iter(loader)
    loader.set_epoch(5)
    assert [values(first), values(second)] == [epochs[0], epochs[5]]


def test_set_epoch_of_the_sampler_after_the_loader_is_deleted() -> None:
    sampler = random_sampler()
    batches = iter(DataLoader(datasets.Sized(N), 4, sampler=sampler))
    sampler.set_epoch(2)
    assert values(batches) == epochs_of("a sampler", 3)[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_of_the_loader_without_torch_after_iter(workers: int) -> None:
    epochs = epochs_of("the loader's own", 4)
    loader = Loader(list(range(N)), 4, shuffle=True, seed=3, workers=workers, engine="thread" if workers else "auto")
    batches = iter(loader)
    loader.set_epoch(2)
    assert values(batches) == epochs[2]
    assert values(loader) == epochs[3]


def test_random_numbers_of_samples_are_those_of_the_epoch() -> None:
    loader = DataLoader(datasets.Drawing(6), batch_size=2, seed=1)
    epochs = [all_bytes(loader) for _ in range(3)]
    loader = DataLoader(datasets.Drawing(6), batch_size=2, seed=1, num_workers=1)
    batches = iter(loader)
    loader.set_epoch(2)
    assert all_bytes(batches) == epochs[2]


def test_nothing_is_drawn_again_from_torchs_generator() -> None:
    def epoch(last_set_epoch: int | None) -> tuple[list[Any], float]:
        torch.manual_seed(0)
        loader = DataLoader(datasets.Sized(N), 4, sampler=samplers.RandomSampler(range(N)))
        batches = iter(loader)
        if last_set_epoch is not None:
            loader.set_epoch(last_set_epoch)
        return values(batches), torch.rand(()).item()

    (order, draw), (other, other_draw) = epoch(None), epoch(1)
    assert draw == other_draw
    assert order != other


def test_set_epoch_after_iter_with_virtual_epochs() -> None:
    loader = Loader(list(range(5)), 2, shuffle=True, seed=1)
    loader.set_epoch(3)
    expected = [values(epoch) for epoch in itertools.islice(loader.virtual_epochs(3), 4)]
    loader = Loader(list(range(5)), 2, shuffle=True, seed=1)
    epochs = loader.virtual_epochs(3)
    first = next(epochs)
    loader.set_epoch(3)
    assert [values(first), *(values(epoch) for epoch in itertools.islice(epochs, 3))] == expected


# Datasets with set_epoch


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_set_epoch_of_the_loader_reaches_the_dataset_after_iter(workers: dict[str, Any]) -> None:
    loader = DataLoader(datasets.Scaled(8), batch_size=2, **workers)
    batches = iter(loader)
    loader.set_epoch(3)
    assert {epoch for _, epochs, _ in values(batches) for epoch in epochs} == {3}
    loader.close()


def test_set_epoch_of_a_stream_after_iter() -> None:
    def stream(**options: Any) -> Any:
        return DataLoader(datasets.EpochStream(8), batch_size=2, **options)

    loader = stream(num_workers=2)
    loader.set_epoch(3)
    expected = values(loader)
    loader = stream(num_workers=2)
    batches = iter(loader)
    loader.set_epoch(3)
    assert values(batches) == expected
    assert expected != values(stream(num_workers=2))


def test_set_epoch_of_the_dataset_does_not_change_the_order() -> None:
    def orders(calls_set_epoch: bool) -> tuple[list[Any], float]:
        torch.manual_seed(0)
        loader = DataLoader(datasets.Scaled(8), batch_size=2, shuffle=True, num_workers=1)
        batches = iter(loader)
        if calls_set_epoch:
            loader.broadcast("set_epoch", 3)
        return [numbers for numbers, *_ in values(batches)], torch.rand(()).item()

    assert orders(True) == orders(False)


def test_set_epoch_of_a_mixture_after_iter() -> None:
    def mixed() -> Any:
        dataset: Any = feedline.datasets.mix([range(50), range(50, 60)], [0.5, 0.5], seed=0, size=8)
        return DataLoader(dataset, 4, seed=1)

    loader = mixed()
    epochs = [values(loader) for _ in range(3)]
    loader = mixed()
    batches = iter(loader)
    loader.set_epoch(2)
    assert values(batches) == epochs[2]


# States


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_before_the_first_batch_has_the_epoch_set_last(kind: str) -> None:
    epochs = epochs_of(kind, 4)
    loader = make(kind)
    batches = iter(loader)
    sampler_of(loader).set_epoch(2)
    states = [loader.state_dict()]
    sampler_of(loader).set_epoch(3)
    states.append(loader.state_dict())
    assert values(batches) == epochs[3]
    for epoch, state in zip((2, 3), states, strict=True):
        resumed = make(kind)
        resumed.load_state_dict(through_json(state))
        assert values(resumed) == epochs[epoch]


@pytest.mark.parametrize("workers", WORKERS[:2], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_within_an_epoch_that_was_set_late_is_exact(kind: str, workers: dict[str, Any]) -> None:
    epochs = epochs_of(kind, 3)
    loader = make(kind, **workers)
    batches = iter(loader)
    sampler_of(loader).set_epoch(2)
    next(batches)
    resumed = make(kind)
    resumed.load_state_dict(through_json(loader.state_dict()))
    rest = iter(resumed)
    sampler_of(resumed).set_epoch(2)
    assert values(rest) == epochs[2][1:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_state_overrides_a_late_set_epoch(kind: str) -> None:
    epochs = epochs_of(kind, 4)
    loader = make(kind)
    sampler_of(loader).set_epoch(2)
    next(iter(loader))
    resumed = make(kind)
    resumed.load_state_dict(loader.state_dict())
    rest = iter(resumed)
    sampler_of(resumed).set_epoch(3)
    with pytest.warns(StateWarning, match=r"set_epoch\(3\)"):
        assert values(rest) == epochs[2][1:]
    sampler_of(resumed).set_epoch(3)
    assert values(resumed) == epochs[3]


@pytest.mark.parametrize("kind", KINDS)
def test_set_epoch_after_loading_a_state_from_the_end(kind: str) -> None:
    epochs = epochs_of(kind, 6)
    loader = make(kind)
    list(loader)
    resumed = make(kind)
    resumed.load_state_dict(loader.state_dict())
    batches = iter(resumed)
    sampler_of(resumed).set_epoch(5)
    assert values(batches) == epochs[5]


# Samplers that are replaced


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_sampler_replaced_after_state_dict_is_used(shuffle: bool) -> None:
    loader: Any = DataLoader(datasets.Sized(N), batch_size=4, shuffle=shuffle)
    loader.state_dict()
    loader.batch_sampler.sampler = list(range(N))[::-1]
    assert values(loader) == np.arange(N)[::-1].reshape(-1, 4).tolist()


def test_a_stateful_sampler_replaced_after_state_dict_is_not_used() -> None:
    loader: Any = DataLoader(datasets.Sized(6), batch_size=2, sampler=datasets.StatefulSampler(6))
    loader.state_dict()
    loader.batch_sampler.sampler = [5, 4, 3, 2, 1, 0]
    assert values(loader) == [[5, 4], [3, 2], [1, 0]]
