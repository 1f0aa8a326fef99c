"""`set_epoch` works until the first batch is requested, since frameworks create the iterator earlier."""

from collections.abc import Callable
from typing import Any

import pytest
import torch.utils.data as torch_data

from feedline import DataLoader, samplers
from feedline.errors import StateWarning
from tests.order import datasets
from tests.order.facts import through_json, values

N = 20
WORKERS: list[dict[str, Any]] = [
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


@pytest.mark.parametrize(
    ("kind", "workers"), [*((kind, {}) for kind in KINDS), ("a share", WORKERS[0]), ("torch's", WORKERS[1])], ids=str
)
def test_set_epoch_of_the_sampler_after_iter(kind: str, workers: dict[str, Any]) -> None:
    epochs = epochs_of(kind, 4)
    loader = make(kind, **workers)
    batches = iter(loader)
    sampler_of(loader).set_epoch(2)
    assert values(batches) == epochs[2]
    sampler_of(loader).set_epoch(3)
    assert values(loader) == epochs[3]
    loader.close()


def test_set_epoch_applies_only_to_the_last_started_iteration() -> None:
    epochs = epochs_of("a sampler", 6)
    loader = make("a sampler")
    first, second = iter(loader), iter(loader)
    loader.set_epoch(5)
    assert [values(first), values(second)] == [epochs[0], epochs[5]]


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


@pytest.mark.parametrize(
    ("kind", "workers", "sets"),
    [
        *((kind, {}, "the sampler") for kind in KINDS),
        ("the loader's own", WORKERS[0], "the loader"),
        ("batches", WORKERS[1], "the sampler"),
        ("torch's batches", {}, "the loader"),
    ],
    ids=str,
)
def test_set_epoch_applies_after_a_state_that_was_taken_before_any_iteration(
    kind: str, workers: dict[str, Any], sets: str
) -> None:
    epochs = epochs_of(kind, 3)
    loader = make(kind, **workers)
    loader.state_dict()
    (loader if sets == "the loader" else sampler_of(loader)).set_epoch(2)
    assert values(loader) == epochs[2]
    loader.close()
