"""What numbers epochs, which objects get the number, and virtual epochs."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data

from feedline import DataLoader, Loader, samplers
from feedline.errors import BadOption, BadState
from feedline.types import EngineName
from tests.order import datasets
from tests.order.facts import flat, slow_except, through_json, values

N = 20


def random_sampler() -> Any:
    return samplers.RandomSampler(range(N), seed=3)


MAKERS: dict[str, Callable[[], dict[str, Any]]] = {
    "the loader's own": lambda: {"shuffle": True, "seed": 3, "batch_size": 4},
    "a sampler": lambda: {"sampler": random_sampler(), "batch_size": 4},
    "a share": lambda: {"sampler": samplers.DistributedSampler(range(N), 2, 1, seed=3), "batch_size": 4},
    "batches": lambda: {"batch_sampler": samplers.BatchSampler(random_sampler(), 4, False)},
    "batches of torch's": lambda: {"batch_sampler": torch_data.BatchSampler(random_sampler(), 4, False)},
    "a share of batches": lambda: {
        "batch_sampler": samplers.distribute(samplers.LengthBucketBatchSampler(range(1, N + 1), 4, seed=3), 0, 2)
    },
    "stratified": lambda: {"batch_sampler": samplers.StratifiedBatchSampler([0, 1] * (N // 2), 4, seed=3)},
}


def make(name: str) -> DataLoader[Any]:
    return DataLoader(datasets.Sized(N), **MAKERS[name]())


def samplers_of(loader: DataLoader[Any]) -> list[Any]:
    """Return every sampler on which a user might call `set_epoch`."""
    candidates = [loader.batch_sampler, loader.sampler, getattr(loader.batch_sampler, "sampler", None)]
    return [sampler for sampler in candidates if isinstance(getattr(type(sampler), "set_epoch", None), Callable)]  # type: ignore[arg-type]


# Numbering


@pytest.mark.parametrize("name", MAKERS)
def test_the_loader_counts_epochs_by_itself(name: str) -> None:
    loader = make(name)
    epochs = [values(loader) for _ in range(4)]
    assert len({str(epoch) for epoch in epochs}) == 4, "every epoch has its own order"
    again = make(name)
    assert [values(again) for _ in range(4)] == epochs


@pytest.mark.parametrize("name", MAKERS)
def test_set_epoch_of_any_sampler_takes_effect(name: str) -> None:
    loader = make(name)
    epochs = [values(loader) for _ in range(7)]
    for number in range(len(samplers_of(make(name)))):
        loader = make(name)
        sampler = samplers_of(loader)[number]
        for epoch in (5, 2, 2, 0):
            sampler.set_epoch(epoch)
            assert values(loader) == epochs[epoch], f"set_epoch({epoch}) of {sampler!r}"
        sampler.set_epoch(4)
        assert [values(loader), values(loader), values(loader)] == epochs[4:7], "counting continues from there"


# Epochs and states


@pytest.mark.parametrize(
    ("name", "epoch", "is_loaded"),
    [("the loader's own", 0, True), ("a sampler", 4, True), ("a share", 4, False), ("batches", 0, False)],
)
def test_a_state_after_an_epoch_has_the_epoch_that_was_set_for_the_next(name: str, epoch: int, is_loaded: bool) -> None:
    loader = make(name)
    epochs = [values(loader) for _ in range(6)]
    loader = make(name)
    values(loader)
    values(loader)
    if is_loaded:
        ended = through_json(loader.state_dict())
        loader = make(name)
        loader.load_state_dict(ended)
    loader.set_epoch(epoch)
    resumed = make(name)
    resumed.load_state_dict(through_json(loader.state_dict()))
    assert values(resumed) == values(loader) == epochs[epoch]
    assert values(resumed) == values(loader) == epochs[epoch + 1]


# Datasets with set_epoch


def epochs_seen(loader: Any) -> tuple[set[int], set[int]]:
    batches = values(loader)
    return {value for _, epochs, _ in batches for value in epochs}, {who for *_, makers in batches for who in makers}


@pytest.mark.parametrize(("engine", "kind"), [("thread", "the other"), ("process", "torch's")])
def test_set_epoch_of_the_loader_reaches_persistent_workers(engine: EngineName, kind: str) -> None:
    dataset = datasets.Scaled(12)  # each sample holds its epoch and the worker that made it
    loader: Any = (
        DataLoader(dataset, batch_size=2, num_workers=2, engine=engine, persistent_workers=True)
        if kind == "torch's"
        else Loader(dataset, 2, workers=2, engine=engine, persistent=True)
    )
    makers = {0, 1} if kind == "torch's" else {-1}  # torch's get_worker_info() knows only torch's workers
    for epoch in (0, 3, 4, 4):
        loader.set_epoch(epoch)
        assert epochs_seen(loader) == ({epoch}, makers)
    assert epochs_seen(loader) == ({4}, makers), "without a call the epoch stays"
    loader.close()


def through_a_state(loader: Any) -> Any:
    resumed = DataLoader(loader.dataset.__class__(12), batch_size=2)
    resumed.load_state_dict(through_json(loader.state_dict()))
    return values(resumed)


def test_a_state_has_the_epoch_that_the_dataset_was_given_after_iter() -> None:
    loader = DataLoader(datasets.Scaled(12), batch_size=2)
    for epoch in range(2):
        batches = iter(loader)
        loader.set_epoch(epoch)
        next(batches)
    resumed = through_a_state(loader)
    assert [batch[1] for batch in resumed] == [[1, 1]] * 5
    assert resumed == values(batches)


# Calls in every worker


def test_a_stream_follows_a_late_set_epoch_and_resumes_in_the_epoch_that_it_began_with() -> None:
    loader = DataLoader(datasets.EpochStream(12), batch_size=2)
    batches = iter(loader)
    loader.set_epoch(1)
    next(batches)
    loader.set_epoch(2)
    rest = [[1002, 1003], [1004, 1005], [1006, 1007], [1008, 1009], [1010, 1011]]
    assert through_a_state(loader) == values(batches) == rest


# Virtual epochs


VIRTUAL: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"batch_size": 3},
    "shuffled": lambda: {"batch_size": 3, "shuffle": True, "seed": 1},
    "a sampler": lambda: {"batch_size": 3, "sampler": samplers.RandomSampler(range(10), seed=3)},
    "weighted": lambda: {"batch_size": 3, "sampler": samplers.WeightedRandomSampler([1.0] * 10, 7, seed=3)},
    "batches": lambda: {"batch_sampler": samplers.StratifiedBatchSampler([0, 1] * 5, 4, seed=3)},
    "infinite": lambda: {"batch_size": 3, "sampler": samplers.InfiniteSampler(range(10), seed=3)},
}

CHAINED: dict[str, Callable[[], dict[str, Any]]] = {
    "a list": lambda: {"batch_size": 3, "sampler": list(range(10))},
    "a generator": lambda: {"batch_size": 3, "sampler": datasets.Backwards(10)},
    "torch's random": lambda: {
        "batch_size": 3,
        "sampler": torch_data.RandomSampler(range(10), generator=torch.Generator().manual_seed(1)),
    },
    "stateful": lambda: {"batch_size": 3, "sampler": datasets.StatefulSampler(10)},
    "a stream": lambda: {"batch_size": 3, "dataset": datasets.Stream(10)},
    "a shared stream": lambda: {"batch_size": 3, "dataset": datasets.Stream(10), "shard": True},
    "a stateful stream": lambda: {
        "batch_size": 3,
        "dataset": datasets.StatefulIteratorStream(10),
        "collate_fn": datasets.first_fields,
    },
}

EVERY = {**VIRTUAL, **CHAINED}
QUICK = ("shuffled", "weighted", "batches", "infinite", "stateful", "a shared stream")


def virtual(name: str, **options: Any) -> DataLoader[Any]:
    return DataLoader(**{"dataset": datasets.Sized(10), **EVERY[name](), **options})


def take(loader: Any, epochs: int, steps: int, **options: Any) -> list[list[Any]]:
    return [values(epoch) for epoch in itertools.islice(loader.virtual_epochs(steps, **options), epochs)]


@pytest.mark.parametrize("name", slow_except(EVERY, *QUICK))
def test_a_virtual_epoch_has_exactly_the_given_number_of_batches(name: str) -> None:
    for steps in (1, 4, 11):
        cut = take(virtual(name), 5, steps)
        assert [len(epoch) for epoch in cut] == [steps] * 5
        uncut = take(virtual(name), 1, 5 * steps)[0]
        assert [batch for epoch in cut for batch in epoch] == uncut, (
            "the batches do not depend on the length of virtual epochs"
        )


@pytest.mark.parametrize(
    ("name", "world_size"), [("in order", 2), ("shuffled", 3), ("a sampler", 2), ("batches", 3), ("infinite", 2)]
)
def test_ranks_share_the_passes_of_virtual_epochs(name: str, world_size: int) -> None:
    ranks = [take(virtual(name), 4, 5, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert {len(epoch) for rank in ranks for epoch in rank} == {5}
    # All ranks' batches of a step, taken alternately, are the order of one rank with larger batches.
    count = 4 * 5 * world_size
    alone = [batch for epoch in take(virtual(name), 1, count) for batch in epoch]
    together = Counter(index for rank in ranks for epoch in rank for batch in epoch for index in batch)
    assert together == Counter(index for batch in alone for index in batch)


@pytest.mark.parametrize("name", ["a list", "torch's random", "a stream"])
def test_ranks_never_silently_get_the_same_samples(name: str) -> None:
    """Either each rank has its part, or the loader raises an error."""
    ranks: list[Any] = []
    with contextlib.suppress(BadOption):
        ranks = [take(virtual(name), 1, 1, rank=rank, world_size=2)[0] for rank in range(2)]
    assert not ranks or set(flat(ranks[0])).isdisjoint(flat(ranks[1]))


@pytest.mark.parametrize("name", slow_except(EVERY, *QUICK))
def test_virtual_epochs_resume_from_every_step(name: str) -> None:
    steps = 4
    whole = take(virtual(name), 1, 10 * steps)[0]
    loader = virtual(name)
    done = 0
    for epoch in itertools.islice(loader.virtual_epochs(steps), 2):
        for number, _ in enumerate(epoch, 1):
            done += 1
            resumed = virtual(name)
            resumed.load_state_dict(through_json(loader.state_dict()))
            parts = [(part.number, values(part)) for part in itertools.islice(resumed.virtual_epochs(steps), 3)]
            over = number == steps
            assert [part for part, _ in parts] == [epoch.number + over + more for more in range(3)]
            first = steps if over else steps - number
            assert [len(batches) for _, batches in parts] == [first, steps, steps]
            assert [batch for _, batches in parts for batch in batches] == whole[done : done + first + 2 * steps]


def test_virtual_epochs_resume_with_another_number_of_ranks() -> None:
    def seen(loaders: list[Any], steps: int, world_size: int) -> Counter[int]:
        return Counter(
            index
            for rank, loader in enumerate(loaders)
            for batch in take(loader, 1, steps, rank=rank, world_size=world_size)[0]
            for index in batch
        )

    before = [virtual("shuffled") for _ in range(2)]
    total = seen(before, 2, 2)
    after = [virtual("shuffled") for _ in range(3)]
    for loader in after:
        loader.load_state_dict(before[0].state_dict())
    total += seen(after, 2 + 2, 3)  # two steps of the first virtual epoch are done
    assert total == Counter(dict.fromkeys(range(10), 3))


def test_leaving_a_virtual_epoch_ends_it() -> None:
    whole = [batch for epoch in take(virtual("shuffled"), 1, 20) for batch in epoch]
    epochs = virtual("shuffled").virtual_epochs(4)
    first = next(epochs)
    assert values(itertools.islice(first, 2)) == whole[:2]
    second = next(epochs)
    assert (first.number, second.number) == (0, 1)
    assert values(second) == whole[2:6]
    assert values(first) == [], "an ended epoch stays ended"
    assert values(second) == []
    assert len(second) == 4


def test_a_state_of_virtual_epochs_does_not_fit_a_plain_iteration() -> None:
    loader = virtual("shuffled")
    take(loader, 1, 2)
    resumed = virtual("shuffled")
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(BadState, match=r"virtual_epochs\(\)"):
        iter(resumed)
    assert len(take(resumed, 1, 2)[0]) == 2, "the state still works for virtual epochs"


def test_a_plain_epoch_of_another_order_does_not_continue_in_virtual_epochs() -> None:
    loader = DataLoader(datasets.Sized(10), 2, shuffle=True)
    states = [loader.state_dict()]
    next(iter(loader))
    states.append(loader.state_dict())
    for state in states:
        resumed = DataLoader(datasets.Sized(10), 2, shuffle=True)
        resumed.load_state_dict(through_json(state))
        with pytest.raises(BadState, match="plain iteration"):
            next(resumed.virtual_epochs(3))
        list(resumed)
        assert len(take(resumed, 1, 3)[0]) == 3, "after that epoch"


@pytest.mark.parametrize("name", ["shuffled", "a sampler", "batches"])
def test_virtual_epochs_continue_a_plain_epoch_of_the_same_order(name: str) -> None:
    whole = [batch for epoch in take(virtual(name), 1, 8) for batch in epoch]
    loader = virtual(name)
    next(iter(loader))
    resumed = virtual(name)
    resumed.load_state_dict(through_json(loader.state_dict()))
    assert take(resumed, 1, 7)[0] == whole[1:]


@pytest.mark.parametrize(
    ("name", "kind"), [("shuffled", "DataLoader"), ("a list", "Loader"), ("a stream", "DataLoader")]
)
def test_virtual_epochs_do_not_go_on_with_workers_that_another_iteration_took(name: str, kind: str) -> None:
    options = {"dataset": datasets.Sized(10), **EVERY[name]()}
    loader: Any = (
        DataLoader(**options, num_workers=1, engine="thread", persistent_workers=True)
        if kind == "DataLoader"
        else Loader(**options, workers=1, engine="thread", persistent=True)
    )
    epochs = loader.virtual_epochs(2)
    assert len(values(next(epochs))) == 2
    next(iter(loader))
    with pytest.raises(BadOption, match="persistent"):
        next(iter(next(epochs)))
    assert len(take(loader, 1, 5)[0]) == 5
    loader.close()


@pytest.mark.parametrize("dataset", [datasets.Sized(0), datasets.Stream(0)])
def test_an_empty_dataset_has_no_virtual_epochs(dataset: Any) -> None:
    with pytest.raises(BadOption, match="no batches to repeat"):
        take(DataLoader(dataset, batch_size=2), 1, 2)
