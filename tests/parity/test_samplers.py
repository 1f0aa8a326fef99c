"""Order: torch's samplers, custom samplers, and other iterables."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tests.parity import datasets
from tests.parity.sides import Parity, Side

pytestmark = pytest.mark.sample(15)

N = 11


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Reversed(Sampler[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n - 1, -1, -1))

    def __len__(self) -> int:
        return self.n


class Buckets(Sampler[list[int]]):
    """Batches of uneven size."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1, 2], [3], [4, 5], [10, 9, 8, 7])

    def __len__(self) -> int:
        return 4


class Recording(Sampler[int]):
    """Counts how many indices were read."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(self.n):
            self.read += 1
            yield index

    def __len__(self) -> int:
        return self.n


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(range(N)),
    "random": lambda: RandomSampler(range(N)),
    "random, seeded": lambda: RandomSampler(range(N), generator=seeded()),
    "random with replacement": lambda: RandomSampler(range(N), replacement=True, num_samples=40),
    "random with replacement, seeded": lambda: RandomSampler(
        range(N), replacement=True, num_samples=70, generator=seeded()
    ),
    "fewer than there are": lambda: RandomSampler(range(N), num_samples=4),
    "more than there are": lambda: RandomSampler(range(N), num_samples=25),
    "subset": lambda: SubsetRandomSampler([9, 3, 5, 0]),
    "subset, seeded": lambda: SubsetRandomSampler([9, 3, 5, 0], generator=seeded()),
    "weighted": lambda: WeightedRandomSampler([float(i) for i in range(N)], 9),
    "weighted without replacement": lambda: WeightedRandomSampler([1.0] * N, 5, replacement=False, generator=seeded()),
    "distributed": lambda: DistributedSampler(range(N), num_replicas=3, rank=1),  # type: ignore[arg-type]
    "distributed, not shuffled": lambda: DistributedSampler(range(N), num_replicas=2, rank=0, shuffle=False),  # type: ignore[arg-type]
    "distributed, dropping": lambda: DistributedSampler(range(N), num_replicas=2, rank=1, drop_last=True, seed=4),  # type: ignore[arg-type]
    "own": lambda: Reversed(N),
    "list": lambda: [4, 4, 2, 0],
    "tuple": lambda: (1, 3),
    "range": lambda: range(0, N, 3),
    "dict keys": lambda: dict.fromkeys([5, 3, 1]),
    "array": lambda: np.array([3, 1, 2]),
    "array of bytes": lambda: np.array([3, 1, 2], dtype=np.uint8),
    "tensor": lambda: torch.tensor([3, 1, 2]),
    "empty": lambda: [],
    "negative": lambda: [-1, -2],
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_over_three_epochs(inline_parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(N), sampler=SAMPLERS[name](), batch_size=4)
        return list(loader), list(loader), list(loader)

    inline_parity.same(code)


@pytest.mark.workers(1)
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_through_workers(worker_parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(N), sampler=SAMPLERS[name](), batch_size=4)
        return list(loader), list(loader)

    worker_parity.same(code)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_without_batches(inline_parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        return list(side.loader(datasets.Squares(N), sampler=SAMPLERS[name](), batch_size=None))

    inline_parity.same(code)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_over_tensors(inline_parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        dataset = TensorDataset(torch.arange(2 * N).reshape(N, 2), torch.arange(N))
        return list(side.loader(dataset, sampler=SAMPLERS[name](), batch_size=4, drop_last=True))

    inline_parity.same(code)


# Shuffling: the same seed gives the same order as torch's


@pytest.mark.parametrize("seed", [0, 2**40])
def test_a_generator_gives_torchs_order_over_epochs(parity: Parity, seed: int) -> None:
    def code(side: Side) -> object:
        generator = seeded(seed)
        loader = side.loader(datasets.Squares(N), batch_size=3, shuffle=True, generator=generator)
        return list(loader), list(loader), list(loader), torch.rand((), generator=generator)

    parity.same(code)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2**40])
def test_the_global_seed_gives_torchs_order_over_epochs(parity: Parity, seed: int) -> None:
    def code(side: Side) -> object:
        torch.manual_seed(seed)
        loader = side.loader(datasets.Squares(N), batch_size=3, shuffle=True)
        return list(loader), list(loader), list(loader)

    parity.same(code)


def test_seeding_again_gives_the_same_order_again(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(N), batch_size=3, shuffle=True)
        torch.manual_seed(5)
        first = list(loader)
        torch.manual_seed(5)
        return first, list(loader)

    observation = parity.same(code)
    assert isinstance(observation.value, tuple)
    first, second = observation.value[1]
    assert first == second


def test_unshuffled_iteration_draws_from_the_global_generator_like_torch(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(N), batch_size=3)
        draws = []
        for _ in range(3):
            list(loader)
            draws.append(torch.rand(()))
        return draws

    parity.same(code)


def test_a_given_generator_leaves_the_global_one_unchanged(parity: Parity) -> None:
    def code(side: Side) -> object:
        before = torch.random.get_rng_state()
        list(side.loader(datasets.Squares(N), batch_size=3, shuffle=True, generator=seeded()))
        return torch.equal(before, torch.random.get_rng_state())

    parity.same(code)


@pytest.mark.slow
def test_two_loaders_share_a_generator(parity: Parity) -> None:
    def code(side: Side) -> object:
        generator = seeded()
        one = side.loader(datasets.Squares(N), batch_size=4, shuffle=True, generator=generator)
        two = side.loader(datasets.Squares(N), batch_size=4, shuffle=True, generator=generator)
        return list(one), list(two), list(one)

    parity.same(code)


def test_zipped_loaders_draw_in_the_same_order_as_torch(inline_parity: Parity) -> None:
    def code(side: Side) -> object:
        one = side.loader(datasets.Squares(N), batch_size=4, shuffle=True)
        two = side.loader(datasets.Squares(N), batch_size=4, shuffle=True)
        return list(zip(one, two, strict=True))

    inline_parity.same(code)


def test_set_epoch_of_a_distributed_sampler_is_respected(parity: Parity) -> None:
    def code(side: Side) -> object:
        sampler: Any = DistributedSampler(datasets.Squares(N), num_replicas=2, rank=0)
        loader = side.loader(datasets.Squares(N), sampler=sampler, batch_size=3)
        epochs = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            epochs.append(list(loader))
        return epochs

    parity.same(code)


# Batch samplers

BATCH_SAMPLERS: dict[str, Callable[[], Any]] = {
    "torch's": lambda: BatchSampler(SequentialSampler(range(N)), 4, False),
    "torch's, dropping": lambda: BatchSampler(SequentialSampler(range(N)), 4, True),
    "torch's over random": lambda: BatchSampler(RandomSampler(range(N)), 4, False),
    "torch's over a list": lambda: BatchSampler([5, 4, 3], 2, False),
    "list of lists": lambda: [[0, 1], [2], [3, 4, 5]],
    "list of tuples": lambda: [(0, 1), (2, 3)],
    "list of ranges": lambda: [range(2), range(5, 8)],
    "list of tensors": lambda: [torch.tensor([0, 1]), torch.tensor([2])],
    "list of arrays": lambda: [np.array([0, 1]), np.array([2, 3])],
    "rows of an array": lambda: np.arange(6).reshape(3, 2),
    "own": Buckets,
    "empty": lambda: [],
    "one-shot generator": lambda: ([i, i + 1] for i in range(0, 6, 2)),
    "iterator of iterators": lambda: [iter([0, 1]), iter([2])],
}


@pytest.mark.workers(1)
@pytest.mark.parametrize("name", [name for name in BATCH_SAMPLERS if name != "iterator of iterators"])
def test_every_batch_sampler(parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(N), batch_sampler=BATCH_SAMPLERS[name]())
        return list(loader), list(loader)

    parity.same(code)


@pytest.mark.parametrize("name", BATCH_SAMPLERS)
def test_every_batch_sampler_over_tensors(inline_parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        dataset = TensorDataset(torch.arange(2 * N).reshape(N, 2))
        return list(side.loader(dataset, batch_sampler=BATCH_SAMPLERS[name]()))

    inline_parity.same(code)


def test_an_empty_batch_of_indices_raises_torchs_error(inline_parity: Parity) -> None:
    inline_parity.same_refusal(lambda side: list(side.loader(datasets.Squares(N), batch_sampler=[[0], [], [1]])))


def test_an_empty_batch_of_indices_reaches_the_users_collate_function(parity: Parity) -> None:
    def code(side: Side) -> object:
        return list(side.loader(datasets.Squares(N), batch_sampler=[[0], [], [1]], collate_fn=datasets.count))

    parity.same(code)


# Without automatic batching


ANYTHING: dict[str, Callable[[], list[Any]]] = {
    "lists": lambda: [[0, 1], [2, 3, 4]],
    "tuples": lambda: [(0, 1), (2,)],
    "dicts": lambda: [{"start": 0, "stop": 3}],
    "strings": lambda: ["a", "b"],
    "nothing": lambda: [None, None],
    "slices": lambda: [slice(0, 3), ..., 2.5],
    "bytes and sets": lambda: [b"key", frozenset({1})],
    "tensors": lambda: [torch.tensor([1, 2]), torch.tensor(3)],
    "arrays": lambda: [np.array([1, 2]), np.int64(3)],
}


@pytest.mark.workers(1)
@pytest.mark.parametrize("name", ANYTHING)
def test_anything_the_sampler_yields_reaches_the_dataset(parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        collate = datasets.as_single
        return list(side.loader(datasets.Identity(), batch_size=None, sampler=ANYTHING[name](), collate_fn=collate))

    parity.same(code)


def test_a_batch_sampler_as_sampler_without_batches(parity: Parity) -> None:
    def code(side: Side) -> object:
        dataset = TensorDataset(torch.arange(2 * N).reshape(N, 2))
        sampler = BatchSampler(RandomSampler(range(N), generator=seeded()), 4, False)
        loader = side.loader(dataset, batch_size=None, sampler=sampler)
        return list(loader), len(loader)

    parity.same(code)


def test_keys_that_are_not_numbers(parity: Parity) -> None:
    parity.same(lambda side: list(side.loader(datasets.Keyed(), sampler=["b", "a", "c"], batch_size=2)))


def test_keys_in_a_batch_sampler(parity: Parity) -> None:
    parity.same(lambda side: list(side.loader(datasets.Keyed(), batch_sampler=[["b"], ["a", "c"]])))


# How a sampler is read


def test_a_generator_as_sampler_is_exhausted_by_one_epoch(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(N), sampler=(i for i in range(5)), batch_size=2)
        return list(loader), list(loader)

    parity.same(code)


def test_an_endless_sampler_is_not_read_to_its_end(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(N), sampler=itertools.cycle(range(N)), batch_size=3)
        return list(itertools.islice(loader, 6))

    parity.same(code)


def test_an_endless_batch_sampler_is_not_read_to_its_end(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(N), batch_sampler=itertools.cycle([[0, 1], [5]]))
        return list(itertools.islice(loader, 6))

    parity.same(code)


def test_inline_the_sampler_is_read_one_batch_at_a_time(inline_parity: Parity) -> None:
    def code(side: Side) -> object:
        sampler = Recording(12)
        return [sampler.read for _ in side.loader(datasets.Squares(12), sampler=sampler, batch_size=3)]

    inline_parity.same(code)


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_with_workers_the_sampler_is_read_no_further_ahead_than_by_torch(worker_parity: Parity, prefetch: int) -> None:
    """Except for batches given to idle workers while a slow one was waited for, as on a busy machine."""
    read: dict[bool, list[int]] = {}
    extra: list[int] = []

    def code(side: Side) -> object:
        sampler = Recording(60)
        loader = side.loader(datasets.Squares(60), sampler=sampler, batch_size=2, prefetch_factor=prefetch)
        read[side.is_feedline] = [sampler.read for _ in loader]
        if side.is_feedline:
            extra.append(2 * loader.stats()["run_ahead_tasks"])
        return None

    fresh = Parity(
        worker_parity.feedline, (*worker_parity.key, worker_parity.feedline.options["engine"]), worker_parity.kept
    )
    fresh.same(code)
    too_far = [pair for pair in zip(read[True], read[False], strict=True) if pair[0] > pair[1] + extra[0]]
    assert not too_far, read


def test_a_sampler_may_react_to_the_loop_inline(inline_parity: Parity) -> None:
    """Hard-example mining: the loop appends to the list it is being fed from."""

    def code(side: Side) -> object:
        order = [0, 1, 2]
        seen = []
        for batch in side.loader(datasets.Squares(N), sampler=order, batch_size=1):
            seen.append(batch)
            if len(order) < 8:
                order.append(len(order))
        return seen

    inline_parity.same(code)


def test_an_exception_of_the_sampler_arrives(parity: Parity) -> None:
    def code(side: Side) -> object:
        def indices() -> Iterator[int]:
            yield from (0, 1)
            raise ArithmeticError("no more indices")

        return list(side.loader(datasets.Squares(N), sampler=indices(), batch_size=2))

    parity.same_failure(code, "no more indices")


def test_rejects_a_sampler_that_cannot_be_iterated(parity: Parity) -> None:
    def code(side: Side) -> object:
        return list(side.loader(datasets.Squares(N), sampler=5, batch_size=2))

    parity.same_failure(code, "not iterable")
