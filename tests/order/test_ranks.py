"""Several ranks share one order: each sample once, equal steps, and a state works for any number of ranks."""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch.utils.data as torch_data

from feedline import DataLoader, samplers
from feedline.errors import BadOption, BadState
from feedline.system.ranks import Tail
from tests.order import datasets
from tests.order.facts import flat, interrupted, rows, through_json, values

WORLDS = [1, 3, 8]
STEPS = {1: 4, 3: 2, 8: 1}
"""How many steps each number of ranks takes before another number resumes."""
TAILS: list[Tail] = ["pad", "drop", "exact"]
N = 67  # a prime, so that nothing divides evenly
BATCH = 2
LARGE = 5


def lengths() -> list[int]:
    return [1 + index * index % 17 for index in range(N)]


WHOLE: dict[str, Callable[[], Any]] = {
    "random": lambda: samplers.RandomSampler(range(N), seed=3),
    "with replacement": lambda: samplers.RandomSampler(range(N), replacement=True, seed=3),
    "weighted": lambda: samplers.WeightedRandomSampler(np.arange(1, N + 1), N, seed=3),
    "balanced": lambda: samplers.BalancedSampler([index % 3 for index in range(N)], seed=3),
    "subset": lambda: samplers.SubsetRandomSampler(range(0, 2 * N, 2), seed=3),
    "torch's random": lambda: torch_data.RandomSampler(range(N)),
    "a list": lambda: list(range(N)),
    "a generator": lambda: datasets.Backwards(N),
}
"""Orders of indices, from which the loader cuts batches."""

WHOLE_BATCHES: dict[str, Callable[[], Any]] = {
    "cut": lambda: samplers.BatchSampler(samplers.RandomSampler(range(N), seed=3), LARGE, False),
    "stratified": lambda: samplers.StratifiedBatchSampler([index % 3 for index in range(N)], LARGE, seed=3),
    "by length": lambda: samplers.LengthBucketBatchSampler(lengths(), LARGE, seed=3),
    "by tokens": lambda: samplers.TokenBudgetBatchSampler(lengths(), 17 * LARGE, seed=3),
    "equal steps": lambda: samplers.BalancedBatches(lengths(), LARGE, window=2, seed=3),
    "equal steps by cost": lambda: samplers.BalancedBatches(lengths(), max_cost=9 * LARGE, window=2, seed=3),
    "torch's": lambda: torch_data.BatchSampler(torch_data.RandomSampler(range(N)), LARGE, False),
    "a list": lambda: [list(range(start, min(start + LARGE, N))) for start in range(0, N, LARGE)],
}
"""Orders of batches."""


def whole_order(name: str) -> list[int]:
    """Return the order of a single rank."""
    if name in WHOLE:
        return flat(loaders(WHOLE[name], 1, "exact")[0])
    return flat(loaders(WHOLE_BATCHES[name], 1, "exact", batches=True)[0])


def loaders(make: Callable[[], Any], world_size: int, tail: Tail, *, batches: bool = False) -> list[DataLoader[Any]]:
    """Return one loader for each rank, with independent samplers."""
    made = []
    for rank in range(world_size):
        share: Any = samplers.distribute(make(), rank, world_size, tail=tail)
        options: dict[str, Any] = {"batch_sampler": share} if batches else {"sampler": share, "batch_size": BATCH}
        size = N if isinstance(share, samplers.BalancedBatches) else 2 * N
        made.append(DataLoader(datasets.Sized(size), **options))
    return made


def go_through(world: list[DataLoader[Any]], steps: int | None = None) -> list[list[Any]]:
    """Take the same number of steps on every rank; return each rank's batches."""
    taken = [values(itertools.islice(loader, steps)) for loader in world]
    assert len({len(batches) for batches in taken}) == 1, f"ranks take {[len(batches) for batches in taken]} steps"
    assert all(batch for batches in taken for batch in batches), "a rank got an empty batch"
    return taken


def union(taken: list[list[Any]]) -> Counter[int]:
    return Counter(index for batches in taken for batch in batches for index in batch)


def all_reject(world: list[DataLoader[Any]]) -> bool:
    """Return whether all ranks refuse to start because the last batches are too small for so many."""
    refusals = 0
    for loader in world:
        state = loader.state_dict()
        try:
            iter(loader)
        except BadOption:
            refusals += 1
        loader.load_state_dict(state)
    assert refusals in (0, len(world)), "some ranks start and would wait for the others"
    return refusals > 0


def common_state(world: list[DataLoader[Any]]) -> dict[str, Any]:
    """Return the state of a rank, having checked that all ranks have the same."""
    states = [through_json(loader.state_dict()) for loader in world]
    alike = [
        {name: value for name, value in state.items() if name not in ("draw_seed", "checksum")} for state in states
    ]
    assert all(state == alike[0] for state in alike), "after equal steps all ranks must have the same state"
    return states[-1]


def check_rest(whole: Counter[int], before: Counter[int], rest: Counter[int], tail: Tail, most_missing: int) -> None:
    """Assert what each tail promises of two parts of an epoch."""
    left = whole - before
    assert before <= whole, "a sample came twice before the end"
    if tail == "exact":
        assert rest == left
    elif tail == "pad":
        assert left <= rest
        assert set(rest) <= set(whole), "only existing samples may be repeated"
    else:
        assert rest <= left
        assert (left - rest).total() <= most_missing


@pytest.mark.parametrize(
    ("name", "tail"),
    [
        ("random", "exact"),
        ("with replacement", "drop"),
        ("weighted", "pad"),
        ("balanced", "drop"),
        ("subset", "pad"),
        ("torch's random", "exact"),
        ("a list", "drop"),
        ("a generator", "pad"),
    ],
)
def test_samples_are_shared_for_any_number_of_ranks_before_and_after(name: str, tail: Tail) -> None:
    whole = Counter(whole_order(name))
    for world_size in WORLDS:
        world = loaders(WHOLE[name], world_size, tail)
        before = union(go_through(world, STEPS[world_size]))
        state = common_state(world)
        for later in WORLDS:
            resumed = loaders(WHOLE[name], later, tail)
            for loader in resumed:
                loader.load_state_dict(state)
            rest = union(go_through(resumed))
            check_rest(whole, before, rest, tail, later - 1)
            assert rest.total() - (whole - before).total() < later, "padding repeats no more than it must"


@pytest.mark.parametrize(
    ("name", "tail"),
    [
        ("cut", "exact"),
        ("stratified", "drop"),
        ("by length", "exact"),
        ("by tokens", "pad"),
        ("equal steps", "exact"),
        ("equal steps by cost", "drop"),
        ("torch's", "pad"),
        ("a list", "drop"),
    ],
)
def test_batches_are_shared_for_any_number_of_ranks_before_and_after(name: str, tail: Tail) -> None:
    make = WHOLE_BATCHES[name]
    whole = Counter(whole_order(name))
    longest = max(map(len, values(loaders(make, 1, tail, batches=True)[0])))
    refused = 0
    for world_size in WORLDS:
        world = loaders(make, world_size, tail, batches=True)
        before = union(go_through(world, 2 if world_size < 4 else 1))
        state = common_state(world)
        for later in WORLDS:
            resumed = loaders(make, later, tail, batches=True)
            for loader in resumed:
                loader.load_state_dict(state)
            if tail == "exact" and all_reject(resumed):
                refused += 1
                continue
            rest = union(go_through(resumed))
            check_rest(whole, before, rest, tail, (later - 1) * longest)
    assert refused < 6, "of 9 pairs"


def test_a_sample_draws_the_same_after_the_number_of_ranks_changed() -> None:
    def world(world_size: int) -> list[Any]:
        shares = [samplers.DistributedSampler(range(36), world_size, rank, seed=2) for rank in range(world_size)]
        return [DataLoader(datasets.Drawing(36), batch_size=2, sampler=share, seed=9) for share in shares]

    before = world(3)
    taken = [row for loader in before for row in rows(itertools.islice(loader, 2))]
    after = world(4)
    for loader in after:
        loader.load_state_dict(before[0].state_dict())
    rest = [row for loader in after for row in rows(loader)]
    assert sorted(taken + rest) == sorted(rows(world(1)[0]))


@pytest.mark.filterwarnings("ignore::feedline.errors.DataWarning")  # the warning is correct here
@pytest.mark.parametrize("batches", [False, True])
def test_ranks_of_foreign_samplers_draw_different_numbers(batches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's DistributedSampler gives every rank its own indices; augmentation must differ between ranks."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    drawn = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        options: dict[str, Any] = (
            {"batch_sampler": [[0, 1], [2, 3]]} if batches else {"batch_size": 2, "sampler": [0, 1, 2, 3]}
        )
        loader = DataLoader(datasets.Drawing(4), seed=1, **options)
        drawn.append(np.concatenate([np.asarray(batch)[:, 1:] for batch in loader]))
    assert not np.isin(drawn[0], drawn[1]).any()


# Streams


STREAM_N = 37


def stream_world(monkeypatch: pytest.MonkeyPatch, world_size: int, shard: Any, **options: Any) -> list[DataLoader[Any]]:
    """Return one loader for each rank, created while the environment names that rank."""
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    world = []
    for rank in range(world_size):
        monkeypatch.setenv("RANK", str(rank))
        given: dict[str, Any] = {"dataset": datasets.Stream(STREAM_N), "batch_size": 2, "shard": shard, "seed": 4}
        world.append(DataLoader(**{**given, **options}))
    return world


@pytest.mark.parametrize("shard", TAILS)
def test_a_stream_is_shared_over_ranks_and_resumes_with_another_number(
    shard: Tail, monkeypatch: pytest.MonkeyPatch
) -> None:
    for world_size in WORLDS:
        world = stream_world(monkeypatch, world_size, shard)
        before = union(go_through(world, 3 if world_size < 4 else 1))
        state = common_state(world)
        for later in WORLDS:
            resumed = stream_world(monkeypatch, later, shard)
            for loader in resumed:
                loader.load_state_dict(state)
            rest = union(go_through(resumed))
            check_rest(Counter(range(STREAM_N)), before, rest, shard, later - 1)


@pytest.mark.parametrize(
    ("n", "shard"), [(8, "pad"), (9, "exact"), (15, "drop"), (16, "exact"), (17, "pad"), (31, "exact")]
)
def test_ranks_end_together_wherever_a_stream_ends(n: int, shard: Tail, monkeypatch: pytest.MonkeyPatch) -> None:
    for world_size in WORLDS:
        world = stream_world(monkeypatch, world_size, shard, dataset=datasets.Stream(n))
        seen = union(go_through(world))
        check_rest(Counter(range(n)), Counter(), seen, shard, world_size - 1)


def test_the_last_step_of_an_exact_stream_is_resumed_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near its end the steps of a stream depend on where it ends, which the state must account for."""

    def numbers(batches: Any) -> list[int]:
        return [int(value) for batch in batches for value in (batch[0] if isinstance(batch, list) else batch)]

    world_size = 3
    dataset = datasets.StatefulIteratorStream(STREAM_N)
    total = len(values(stream_world(monkeypatch, world_size, "exact", dataset=dataset)[0]))
    for done in range(total - 2, total + 1):
        world = stream_world(monkeypatch, world_size, "exact", dataset=dataset)
        seen = [index for loader in world for index in numbers(itertools.islice(loader, done))]
        states = [loader.state_dict() for loader in world]
        resumed = stream_world(monkeypatch, world_size, "exact", dataset=dataset)
        for loader, state in zip(resumed, states, strict=True):
            loader.load_state_dict(state)
        seen += [index for loader in resumed for index in numbers(loader)]
        assert Counter(seen) == Counter(range(STREAM_N)), f"after {done} of {total} steps"


def test_foreign_samplers_need_the_same_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position of torch's DistributedSampler means nothing to another number of ranks."""

    def make(world_size: int) -> Any:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        sampler: Any = torch_data.DistributedSampler(range(24), world_size, 0)  # type: ignore[arg-type]
        return DataLoader(datasets.Sized(24), batch_size=2, sampler=sampler)

    taken, resumed = interrupted(lambda: make(2), 2)
    assert values(taken) + values(resumed) == values(make(2))
    with pytest.raises(BadState, match="world_size"):
        interrupted(lambda: make(2), 2, lambda: make(3))
