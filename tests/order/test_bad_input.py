"""Invalid input is rejected: with torch's error where torch has one, otherwise with a helpful message."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch.utils.data as torch_data
from torchdata.stateful_dataloader import StatefulDataLoader

from feedline import DataLoader, Loader, samplers
from feedline.errors import BadOption, BadState
from tests.order import datasets
from tests.order.facts import flat, values

# Ranks


@pytest.mark.parametrize(
    ("rank", "world_size"), [(-1, 2), (2, 2), (5, 3), (0, 0), (0, -1), (0.0, 2), ("0", 2), (True, 2), (0, 1.5)]
)
def test_invalid_ranks_are_rejected(rank: Any, world_size: Any) -> None:
    for make in (
        lambda: samplers.DistributedSampler(range(9), world_size, rank),
        lambda: samplers.distribute(range(9), rank, world_size),
        lambda: DataLoader(datasets.Sized(9)).virtual_epochs(2, rank=rank, world_size=world_size),
    ):
        with pytest.raises(BadOption, match=r"rank|world_size"):
            make()


# Options of the loaders


@pytest.mark.parametrize(("kind", "shard"), [(DataLoader, "all"), (DataLoader, 2), (Loader, ""), (Loader, [True])])
def test_invalid_values_of_shard_are_rejected(kind: Any, shard: Any) -> None:
    with pytest.raises(BadOption, match=r"shard=.* is not one of True, False, 'pad', 'drop', 'exact'"):
        kind(datasets.Stream(3), shard=shard)


def test_shard_is_rejected_for_map_style_datasets() -> None:
    with pytest.raises(BadOption, match=r"DistributedSampler"):
        DataLoader(datasets.Sized(3), shard="pad")
    assert values(DataLoader(datasets.Sized(3), shard=False)) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2, "drop_last": True}, "drop_last"),
        ({"batch_size": 1}, "batch"),
        ({"batch_size": None}, "batch"),
    ],
)
def test_an_impossible_exact_stream_is_rejected_at_once(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the end of the stream, hours later."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadOption, match=message):
        DataLoader(datasets.Stream(7), shard="exact", **options)


# States


def loader_of(n: int = 20, **options: Any) -> DataLoader[Any]:
    given: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 1}
    return DataLoader(datasets.Sized(n), **{**given, **options})


def some_state(**options: Any) -> dict[str, Any]:
    loader = loader_of(**options)
    list(itertools.islice(loader, 2))
    return json.loads(json.dumps(loader.state_dict()))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_a_state_of_torchdata_is_recognised() -> None:
    torchdatas: Any = StatefulDataLoader(datasets.Sized(20), batch_size=3)
    next(iter(torchdatas))
    with pytest.raises(BadState, match="torchdata's StatefulDataLoader"):
        loader_of().load_state_dict(torchdatas.state_dict())
    with pytest.raises(BadState, match="torchdata's StatefulDataLoader"):
        Loader(datasets.Sized(20)).load_state_dict(torchdatas.state_dict())


OTHERS: dict[str, Callable[[], Any]] = {
    "another length": lambda: loader_of(21),
    "torch's sampler": lambda: loader_of(shuffle=None, sampler=torch_data.RandomSampler(range(20))),
    "a list": lambda: loader_of(shuffle=None, sampler=list(range(20))),
    "batches": lambda: DataLoader(
        datasets.Sized(20),
        batch_sampler=samplers.StratifiedBatchSampler([0, 1] * 10, 3),
    ),
    "a stream": lambda: DataLoader(datasets.Stream(20), batch_size=3),
    "a shared stream": lambda: DataLoader(datasets.Stream(20), batch_size=3, shard=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_order_is_rejected_both_ways(name: str) -> None:
    other = OTHERS[name]()
    with pytest.raises(BadState, match="another order") as refused:
        other.load_state_dict(some_state())
    assert "and here" in str(refused.value)
    assert len(flat(other)) == 20 + (name == "another length"), "a rejected state leaves the loader unchanged"
    list(itertools.islice(other, 2))
    with pytest.raises(BadState, match="another order"):
        loader_of().load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [
        ("sampler", samplers.WeightedRandomSampler([1.0, 2.0], 4), samplers.WeightedRandomSampler([2.0, 1.0], 4)),
        ("sampler", samplers.SubsetRandomSampler([1, 2, 3]), samplers.SubsetRandomSampler([1, 2, 4])),
        ("batch_sampler", *(samplers.LengthBucketBatchSampler(lengths, 2) for lengths in ([1, 2, 9], [9, 1, 2]))),
        ("batch_sampler", *(samplers.StratifiedBatchSampler(labels, 2) for labels in ([0, 0, 1, 1], [0, 1, 0, 1]))),
    ],
)
def test_states_with_other_weights_labels_or_lengths_are_rejected(name: str, one: Any, two: Any) -> None:
    loader, other = (DataLoader(datasets.Sized(9), **{name: sampler}) for sampler in (one, two))
    next(iter(loader))
    with pytest.raises(BadState, match="checksum"):
        other.load_state_dict(loader.state_dict())


def test_the_seed_of_a_state_overrides_that_of_the_loader() -> None:
    """Resuming with another seed continues the saved order: no sample is lost or repeated."""
    loader = loader_of(seed=1)
    iterator = iter(loader)
    taken = flat(itertools.islice(iterator, 2))
    resumed = loader_of(seed=2)
    resumed.load_state_dict(loader.state_dict())
    rest = flat(resumed)
    assert rest == flat(iterator)
    assert sorted(taken + rest) == list(range(20))
