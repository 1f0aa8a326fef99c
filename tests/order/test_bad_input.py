"""Invalid input is rejected: with torch's error where torch has one, otherwise with a helpful message."""

import contextlib
import copy
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

import feedline
from feedline import DataLoader, Loader, samplers
from feedline.delivery.state import Snapshot
from feedline.errors import BadOption, BadState, FeedlineError
from feedline.types import EngineName
from tests.order import datasets
from tests.order.facts import flat, values
from tests.sampling import examples

pytestmark = pytest.mark.sample(15)

# Nothing to deliver


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 4},
        {"batch_size": None},
        {"drop_last": True, "batch_size": 3},
        {"seed": 1},
        {"num_workers": 2},
        {"num_workers": 1, "engine": "thread", "seed": 1},
        {"sampler": []},
        {"batch_sampler": []},
    ],
)
def test_an_empty_dataset_has_an_empty_epoch(options: dict[str, Any]) -> None:
    loader = DataLoader(datasets.Sized(0), **options)
    assert (values(loader), values(loader)) == ([], [])
    resumed = DataLoader(datasets.Sized(0), **options)
    resumed.load_state_dict(loader.state_dict())
    assert values(resumed) == []


def test_shuffling_an_empty_dataset_raises_torchs_error() -> None:
    with pytest.raises(ValueError, match="num_samples") as torchs:
        torch_data.DataLoader(datasets.Sized(0), shuffle=True)
    with pytest.raises(type(torchs.value), match="num_samples"):
        DataLoader(datasets.Sized(0), shuffle=True)
    with pytest.raises(ValueError, match=r"empty.*num_samples"):
        DataLoader(datasets.Sized(0), shuffle=True, seed=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_larger_than_the_dataset_is_dropped_or_short(workers: int) -> None:
    dropped = DataLoader(datasets.Sized(3), batch_size=5, drop_last=True, seed=1, shuffle=True, num_workers=workers)
    assert (len(dropped), values(dropped), values(dropped)) == (0, [], [])
    assert dropped.state_dict()["ended"]
    kept = DataLoader(datasets.Sized(3), batch_size=5, num_workers=workers)
    assert values(kept) == [[0, 1, 2]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: samplers.RandomSampler([]),
        lambda: samplers.RandomSampler([], num_samples=3),
        lambda: samplers.RandomSampler(range(3), num_samples=0),
        lambda: samplers.RandomSampler(range(3), num_samples=-1),
        lambda: samplers.RandomSampler(range(3), num_samples=1.5),  # type: ignore[arg-type]
        lambda: samplers.InfiniteSampler([]),
        lambda: samplers.WeightedRandomSampler([], 3),
        lambda: samplers.WeightedRandomSampler([0.0, 0.0], 3),
        lambda: samplers.WeightedRandomSampler([1.0, -1.0], 3),
        lambda: samplers.WeightedRandomSampler([1.0, float("nan")], 3),
        lambda: samplers.WeightedRandomSampler([1.0], 0),
        lambda: samplers.WeightedRandomSampler([1.0, 0.0], 2, replacement=False),
        lambda: samplers.BalancedSampler([]),
        lambda: samplers.BatchSampler(range(3), 0, False),
        lambda: samplers.BatchSampler(range(3), True, False),
        lambda: samplers.BatchSampler(range(3), 2, "no"),  # type: ignore[arg-type]
        lambda: samplers.StratifiedBatchSampler([], 2),
        lambda: samplers.StratifiedBatchSampler([1, 2, 3], 2, mode="each"),
        lambda: samplers.StratifiedBatchSampler([1, 2], 0),
        lambda: samplers.LengthBucketBatchSampler([], 2),
        lambda: samplers.LengthBucketBatchSampler([1, -1], 2),
        lambda: samplers.LengthBucketBatchSampler([1, 2], 0),
        lambda: samplers.LengthBucketBatchSampler([1, 2], 2, boundaries=[3, 1]),
        lambda: samplers.TokenBudgetBatchSampler([5, 9], 8),
        lambda: samplers.TokenBudgetBatchSampler([5], 0),
        lambda: samplers.SubsetRandomSampler([[1, 2]]),
        lambda: samplers.SubsetRandomSampler(np.array([True, False])),
        lambda: samplers.SubsetRandomSampler([0.5]),
        lambda: samplers.RandomSampler(range(3), seed=1, generator=torch.Generator()),
        lambda: samplers.distribute(iter([1, 2]), 0, 2),
    ],
)
def test_samplers_reject_invalid_arguments(make: Callable[[], Any]) -> None:
    with pytest.raises(BadOption) as refused:
        make()
    assert len(str(refused.value)) > 30


def test_a_sampler_without_indices_makes_an_empty_epoch() -> None:
    empty: Any = samplers.SubsetRandomSampler([])
    assert values(DataLoader(datasets.Sized(3), sampler=empty)) == []
    assert values(DataLoader(datasets.Sized(3), sampler=samplers.SequentialSampler([]))) == []


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


def test_torch_rejects_invalid_ranks_with_the_same_error_type() -> None:
    with pytest.raises(ValueError, match="Invalid rank"):
        torch_data.DistributedSampler(range(9), 2, 2)  # type: ignore[arg-type]
    assert issubclass(BadOption, ValueError)


@pytest.mark.parametrize("tail", ["padded", "", None, 3])
def test_unknown_tails_are_rejected(tail: Any) -> None:
    with pytest.raises(BadOption, match="'pad', 'drop', 'exact'"):
        samplers.distribute(range(9), 0, 2, tail=tail)


def test_an_exact_tail_contradicts_drop_last() -> None:
    with pytest.raises(BadOption, match="contradict"):
        samplers.DistributedSampler(range(9), 2, 0, drop_last=True, tail="exact")
    sampler: Any = samplers.DistributedSampler(range(9), 2, 0, tail="exact")
    with pytest.raises(BadOption, match="drop_last=True leaves samples out"):
        iter(DataLoader(datasets.Sized(9), batch_size=2, drop_last=True, sampler=sampler))


def test_an_exact_tail_needs_batches_of_two_or_more() -> None:
    sampler: Any = samplers.DistributedSampler(range(9), 2, 0, tail="exact")
    with pytest.raises(BadOption, match="batch size of 2 or more"):
        iter(DataLoader(datasets.Sized(9), sampler=sampler))


# Options of the loaders


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True, [1]])
@pytest.mark.parametrize("kind", [DataLoader, Loader])
def test_invalid_seeds_are_rejected(kind: Any, seed: Any) -> None:
    with pytest.raises(BadOption, match="seed="):
        kind(datasets.Sized(3), seed=seed)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, np.int64(5)])
@pytest.mark.parametrize("workers", [0, 1])
def test_every_non_negative_integer_is_a_valid_seed(seed: Any, workers: int) -> None:
    def batches() -> list[Any]:
        engine: EngineName = "thread" if workers else "inline"
        dataset = datasets.DrawingOwn(6) if workers else datasets.Drawing(6)
        loader = DataLoader(dataset, batch_size=2, shuffle=True, seed=seed, num_workers=workers, engine=engine)
        first = values(loader)
        resumed = DataLoader(dataset, batch_size=2, shuffle=True, seed=seed)
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        return [first, values(resumed)]

    assert batches() == batches()


def test_consecutive_seeds_give_different_orders() -> None:
    orders = {str(flat(DataLoader(datasets.Sized(30), shuffle=True, seed=seed))) for seed in range(50)}
    assert len(orders) == 50


@pytest.mark.parametrize("shard", ["all", "", 2, 1.0, [True]])
@pytest.mark.parametrize("kind", [DataLoader, Loader])
def test_invalid_values_of_shard_are_rejected(kind: Any, shard: Any) -> None:
    with pytest.raises(BadOption, match=r"shard=.* is not one of True, False, 'pad', 'drop', 'exact'"):
        kind(datasets.Stream(3), shard=shard)


@pytest.mark.parametrize("shard", [True, "pad", "exact"])
def test_shard_is_rejected_for_map_style_datasets(shard: Any) -> None:
    with pytest.raises(BadOption, match=r"DistributedSampler"):
        DataLoader(datasets.Sized(3), shard=shard)
    assert values(DataLoader(datasets.Sized(3), shard=False)) == [[0], [1], [2]]


def test_shard_is_rejected_for_data_pipes() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    with pytest.raises(BadOption, match="split themselves"):
        DataLoader(IterableWrapper(range(3)), shard=True)


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


@pytest.mark.parametrize("every", [-1, 1.5, "2"])
def test_invalid_snapshot_intervals_are_rejected(every: Any) -> None:
    with pytest.raises(BadOption, match="snapshot_every_n_steps="):
        DataLoader(datasets.Stream(3), snapshot_every_n_steps=every)


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"sampler": [0]},
        {"batch_sampler": [[0]]},
    ],
)
def test_an_order_for_an_iterable_dataset_raises_torchs_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="IterableDataset") as torchs:
        torch_data.DataLoader(datasets.Stream(3), **options)
    with pytest.raises(ValueError, match="IterableDataset") as ours:
        DataLoader(datasets.Stream(3), seed=1, **options)
    assert str(ours.value) == str(torchs.value)


def test_shuffle_with_a_sampler_raises_torchs_error_also_with_a_seed() -> None:
    with pytest.raises(ValueError, match="sampler option is mutually exclusive with shuffle"):
        DataLoader(datasets.Sized(3), shuffle=True, sampler=[0], seed=1)
    with pytest.raises(ValueError, match="batch_sampler option is mutually exclusive"):
        DataLoader(datasets.Sized(3), shuffle=True, batch_sampler=[[0]], seed=1)


def test_a_dataset_without_a_length_cannot_be_shuffled() -> None:
    class Endless:
        def __getitem__(self, index: int) -> int:
            return index

    for seed in (None, 1):
        with pytest.raises(TypeError, match="len"):
            DataLoader(Endless(), shuffle=True, seed=seed)  # type: ignore[call-overload]


def test_an_index_beyond_the_dataset_raises_the_datasets_error() -> None:
    class Strict(datasets.Sized):
        def __getitem__(self, index: int) -> Any:
            if not 0 <= index < self.n:
                raise IndexError(f"no sample {index}")
            return index

    sampler: Any = samplers.RandomSampler(range(50), seed=1)
    loader = DataLoader(Strict(5), sampler=sampler)
    with pytest.raises(IndexError, match="no sample"):
        list(loader)


def test_rng_outside_a_loader_is_an_ordinary_generator() -> None:
    assert 0 <= feedline.rng().random() < 1
    list(DataLoader(datasets.DrawingOwn(3), seed=1))
    assert feedline.rng().random() != feedline.rng().random()


# States


def loader_of(n: int = 20, **options: Any) -> DataLoader[Any]:
    given: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 1}
    return DataLoader(datasets.Sized(n), **{**given, **options})


def some_state(**options: Any) -> dict[str, Any]:
    loader = loader_of(**options)
    list(itertools.islice(loader, 2))
    return json.loads(json.dumps(loader.state_dict()))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "state", [None, 3, "state", [1, 2], (), b"state", {"epoch": 3}, {"_snapshot": 1}, {1: 2}, {"feedline": None}]
)
def test_objects_that_are_not_states_are_rejected(state: Any) -> None:
    loader = loader_of()
    with pytest.raises(BadState, match="state"):
        loader.load_state_dict(state)
    assert len(values(loader)) == 7, "the loader is unchanged"


@pytest.mark.parametrize("version", [0, 3, "1", 1.5, True, -1, [1]])
def test_states_of_other_versions_are_rejected(version: Any) -> None:
    with pytest.raises(BadState, match=r"format"):
        loader_of().load_state_dict({**some_state(), "feedline": version})


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_a_state_of_torchdata_is_recognised() -> None:
    torchdatas: Any = StatefulDataLoader(datasets.Sized(20), batch_size=3)
    next(iter(torchdatas))
    with pytest.raises(BadState, match="torchdata's StatefulDataLoader"):
        loader_of().load_state_dict(torchdatas.state_dict())
    with pytest.raises(BadState, match="torchdata's StatefulDataLoader"):
        Loader(datasets.Sized(20)).load_state_dict(torchdatas.state_dict())


@pytest.mark.parametrize("name", ["epoch", "ended"])
def test_a_state_with_a_missing_key_is_rejected(name: str) -> None:
    state = some_state()
    del state[name]
    with pytest.raises(BadState, match="changed or cut off"):
        loader_of().load_state_dict(state)


OTHERS: dict[str, Callable[[], Any]] = {
    "another length": lambda: loader_of(21),
    "not shuffled": lambda: loader_of(shuffle=False),
    "another sampler": lambda: loader_of(shuffle=None, sampler=samplers.WeightedRandomSampler([1.0] * 20, 20)),
    "with replacement": lambda: loader_of(shuffle=None, sampler=samplers.RandomSampler(range(20), True)),
    "torch's sampler": lambda: loader_of(shuffle=None, sampler=torch_data.RandomSampler(range(20))),
    "a list": lambda: loader_of(shuffle=None, sampler=list(range(20))),
    "batches": lambda: DataLoader(
        datasets.Sized(20),
        batch_sampler=samplers.StratifiedBatchSampler([0, 1] * 10, 3),
    ),
    "a stream": lambda: DataLoader(datasets.Stream(20), batch_size=3),
    "a shared stream": lambda: DataLoader(datasets.Stream(20), batch_size=3, shard=True),
    "the other loader, not shuffled": lambda: Loader(datasets.Sized(20), 3),
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


def test_states_with_other_weights_labels_or_lengths_are_rejected() -> None:
    pairs: list[tuple[Any, Any]] = [
        (samplers.WeightedRandomSampler([1.0, 2.0], 4, seed=1), samplers.WeightedRandomSampler([2.0, 1.0], 4, seed=1)),
        (samplers.SubsetRandomSampler([1, 2, 3], seed=1), samplers.SubsetRandomSampler([1, 2, 4], seed=1)),
    ]
    for one, two in pairs:
        loader = DataLoader(datasets.Sized(9), sampler=one)
        next(iter(loader))
        with pytest.raises(BadState, match="checksum"):
            DataLoader(datasets.Sized(9), sampler=two).load_state_dict(loader.state_dict())
    batches: list[tuple[Any, Any]] = [
        (samplers.LengthBucketBatchSampler([1, 2, 9, 8], 2), samplers.LengthBucketBatchSampler([9, 8, 1, 2], 2)),
        (samplers.StratifiedBatchSampler([0, 0, 1, 1], 2), samplers.StratifiedBatchSampler([0, 1, 0, 1], 2)),
    ]
    for one, two in batches:
        loader = DataLoader(datasets.Sized(9), batch_sampler=one)
        next(iter(loader))
        with pytest.raises(BadState, match="checksum"):
            DataLoader(datasets.Sized(9), batch_sampler=two).load_state_dict(loader.state_dict())


def test_a_state_for_a_list_of_another_length_is_rejected() -> None:
    loader = DataLoader(datasets.Sized(9), sampler=[1, 2, 3, 4])
    next(iter(loader))
    with pytest.raises(BadState, match="length"):
        DataLoader(datasets.Sized(9), sampler=[1, 2, 3]).load_state_dict(loader.state_dict())


def test_a_state_for_a_list_with_another_batch_size_is_rejected() -> None:
    """Its position is counted in batches."""
    loader = DataLoader(datasets.Sized(9), batch_size=2, sampler=[1, 2, 3, 4])
    next(iter(loader))
    with pytest.raises(BadState, match="batch_size"):
        DataLoader(datasets.Sized(9), batch_size=4, sampler=[1, 2, 3, 4]).load_state_dict(loader.state_dict())


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


@pytest.mark.parametrize("name", ["epoch", "seed", "draw_seed", "order", "early", "streams", "turn", "virtual"])
@pytest.mark.parametrize(
    "value", [float("inf"), float("nan"), -1.5, "x", [None], [[]], [float("inf"), 0], {"consumed": "x"}]
)
def test_a_field_of_the_wrong_type_is_rejected_or_harmless(name: str, value: Any) -> None:
    loader = loader_of()
    batches: list[Any] = []
    with contextlib.suppress(BadState):
        loader.load_state_dict({**some_state(), name: value})
        batches = values(loader)
    assert len(batches) <= 7


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**19) | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def paths(state: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every path in a state except those of the dataset's own state."""
    if at and at[-1] in ("dataset", "iterator"):
        return
    if at:
        yield at
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for name, value in items:
        yield from paths(value, (*at, name))


def damaged(state: Any, at: tuple[Any, ...], value: Any) -> Any:
    state = copy.deepcopy(state)
    holder = state
    for name in at[:-1]:
        holder = holder[name]
    holder[at[-1]] = value
    return state


MAKERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "shuffled": loader_of,
    "torch's": lambda: loader_of(seed=None),
    "a stateful stream": lambda: DataLoader(datasets.StatefulIteratorStream(20), batch_size=3),
    "a shared stream": lambda: DataLoader(datasets.Stream(20), batch_size=3, shard=True),
}


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_damaged_state_is_rejected_or_harmless(name: str, data: st.DataObject) -> None:
    """Never another error than feedline's, never a hang, never more than an epoch."""
    loader = MAKERS[name]()
    list(itertools.islice(loader, 2))
    state = loader.state_dict()
    at = data.draw(st.sampled_from(sorted(paths(state), key=repr)))
    broken = damaged(state, at, data.draw(junk))
    resumed = MAKERS[name]()
    try:
        resumed.load_state_dict(broken)
        batches = values(itertools.islice(resumed, 30))
    except FeedlineError:
        return
    assert len(batches) <= 7


@pytest.mark.parametrize("consumed", [10**12, 21])
def test_a_state_beyond_the_order_delivers_nothing_or_is_rejected(consumed: int) -> None:
    state = Snapshot.from_dict(some_state())
    loader = loader_of()
    try:
        loader.load_state_dict(replace(state, order={**state.order, "consumed": consumed}).as_dict())
    except BadState:
        return
    assert values(loader) == []
