"""Faults of order and resumption that were found by reading and are here to stay mended, through the public API."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from feedline import DataLoader, Loader
from feedline.datasets import mix
from feedline.errors import BadOption, BadState, RepeatedSamples, UnequalStreams
from feedline.samplers import LengthBucketBatchSampler, TokenBudgetBatchSampler, distribute

KINDS = [Loader, DataLoader]


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def flat(batches: Any) -> list[Any]:
    return [value for batch in batches for value in batch.tolist()]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    def become(rank: int, world_size: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return become


# -- what goes wrong costs no more than itself ---


class Interrupted(Dataset[int]):
    """Somebody presses Ctrl-C while sample 5 is made, once."""

    def __init__(self) -> None:
        self.is_due = True

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 5 and self.is_due:
            self.is_due = False
            raise KeyboardInterrupt
        return index


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_loses_no_batch(kind: Any) -> None:
    loader = kind(Interrupted(), 2)
    batches = iter(loader)
    assert lists(islice(batches, 2)) == [[0, 1], [2, 3]]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    other = kind(list(range(10)), 2)
    other.load_state_dict(loader.state_dict())
    assert lists(other) == [[4, 5], [6, 7], [8, 9]]
    assert lists(batches) == [[4, 5], [6, 7], [8, 9]]


class Spoilt(IterableDataset[int]):
    """Sample 5 cannot be made; those after it can."""

    def __iter__(self) -> Iterator[int]:
        return map(self.make, range(12))

    def make(self, number: int) -> int:
        if number == 5:
            raise ValueError("five")
        return number


def survivors(batches: Iterator[Any]) -> tuple[list[Any], int]:
    """Return the batches that come, and how often something was raised instead."""
    came, failures = [], 0
    while True:
        try:
            came.append(next(batches).tolist())
        except StopIteration:
            return came, failures
        except ValueError:
            failures += 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_of_a_stream_that_is_shared_out_costs_its_own_batch(workers: int) -> None:
    loader = DataLoader(Spoilt(), 2, shard=True, num_workers=workers, engine="thread" if workers else "auto")
    assert survivors(iter(loader)) == ([[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]], 1)


@pytest.mark.parametrize("shard", [True, False])
def test_a_stream_that_is_read_again_gets_over_a_sample_that_raised(shard: bool) -> None:
    loader = DataLoader(Spoilt(), 2, shard=shard)
    batches = iter(loader)
    assert lists(islice(batches, 2)) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="five"):
        next(batches)
    state = loader.state_dict()
    other = DataLoader(Spoilt(), 2, shard=shard)
    other.load_state_dict(state)
    assert survivors(iter(other)) == ([[6, 7], [8, 9], [10, 11]], 0)


class Repeating(IterableDataset[torch.Tensor]):
    """Every worker delivers all of it."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((1000,), float(number)) for number in range(6))


def test_a_warning_made_an_error_costs_one_batch_and_no_slot() -> None:
    loader = DataLoader(Repeating(), 2, num_workers=2, prefetch_factor=1, timeout=30, persistent_workers=True)
    batches = iter(loader)
    came = raised = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while True:
            try:
                next(batches)
                came += 1
            except StopIteration:
                break
            except RepeatedSamples:
                raised += 1
    assert (came, raised) == (5, 1)
    arena = loader._supply._arena
    if arena is not None:
        assert len(arena._warm) + len(arena._cold) == len(arena._slots), "every slot that was ever taken is back"
    loader.close()


# -- samplers that are not feedline's ---


@pytest.mark.parametrize(
    "make_sampler",
    [
        lambda: SubsetRandomSampler(range(20)),
        lambda: WeightedRandomSampler([1.0 + number for number in range(20)], 20),
    ],
)
@pytest.mark.parametrize("batch_size", [2, None])
def test_torchs_samplers_without_a_generator_resume_exactly(
    make_sampler: Callable[[], Any], batch_size: int | None
) -> None:
    torch.manual_seed(1)
    loader: Any = DataLoader(range(20), batch_size, sampler=make_sampler())
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [torch.as_tensor(batch).tolist() for batch in batches]
    torch.manual_seed(2)
    other: Any = DataLoader(range(20), batch_size, sampler=make_sampler())
    other.load_state_dict(state)
    assert [torch.as_tensor(batch).tolist() for batch in other] == rest


def test_torchs_distributed_sampler_resumes_in_the_epoch_that_it_was_told() -> None:
    def make() -> tuple[DataLoader[int], DistributedSampler[int]]:
        sampler: DistributedSampler[int] = DistributedSampler(range(20), 2, 1, seed=5)  # type: ignore[arg-type]
        return DataLoader(range(20), 2, sampler=sampler), sampler

    loader, sampler = make()
    sampler.set_epoch(3)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other, fresh = make()
    other.load_state_dict(state)
    assert lists(other) == lists(batches)
    assert fresh.epoch == 3


class Watchful:
    """A sampler that is a generator function, which wants to be closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    def __iter__(self) -> Iterator[int]:
        self.opened += 1
        try:
            yield from range(10)
        finally:
            self.closed += 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_samplers_iterator_is_closed_with_the_loop_and_the_state_is_still_known(kind: Any, workers: int) -> None:
    def make(sampler: Watchful) -> Any:
        options = {"workers" if kind is Loader else "num_workers": workers}
        return kind(list(range(10)), 2, sampler=sampler, engine="thread" if workers else "auto", **options)

    sampler = Watchful()
    loader = make(sampler)
    for _ in loader:
        break
    assert sampler.closed == sampler.opened > 0
    other = make(Watchful())
    other.load_state_dict(loader.state_dict())
    assert lists(other) == [[2, 3], [4, 5], [6, 7], [8, 9]]


class Eager:
    """Draws its order when it is asked for an iterator."""

    def __init__(self) -> None:
        self.random = random.Random(4)

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(range(10), 10))


@pytest.mark.parametrize("kind", KINDS)
def test_asking_for_the_state_beforehand_does_not_change_the_order(kind: Any) -> None:
    plain, asked = (kind(list(range(10)), 2, sampler=Eager()) for _ in range(2))
    asked.state_dict()
    asked.state_dict()
    assert [lists(asked), lists(asked)] == [lists(plain), lists(plain)]


class Counted:
    """A sampler that counts who asks for its length."""

    asked = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        self.asked += 1
        return 4


@pytest.mark.parametrize("kind", KINDS)
def test_iterating_does_not_ask_for_the_length_of_the_sampler(kind: Any) -> None:
    sampler = Counted()
    assert lists(kind(list(range(4)), 2, sampler=sampler)) == [[0, 1], [2, 3]]
    assert sampler.asked == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_sampler_is_no_sampler(kind: Any) -> None:
    batches = LengthBucketBatchSampler([1, 2, 3, 4], 2)
    with pytest.raises(BadOption, match="Give it as batch_sampler="):
        kind(list(range(4)), 2, sampler=batches)
    assert len(lists(kind(list(range(4)), batch_sampler=batches))) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_round_that_cannot_be_split_is_refused_at_the_beginning(kind: Any) -> None:
    batches = distribute(LengthBucketBatchSampler([1] * 5, 2, shuffle=False), 0, 2, tail="exact")
    loader = kind(list(range(5)), batch_sampler=batches)
    with pytest.raises(BadOption, match='tail="exact"'):
        iter(loader)


def test_a_budget_of_tokens_is_kept_after_rounding() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 500)
    padded = -(-lengths // 8) * 8
    batches = list(TokenBudgetBatchSampler(lengths, 256, seed=1, multiple_of=8))
    assert max(len(batch) * padded[batch].max() for batch in batches) <= 256
    assert sorted(itertools.chain.from_iterable(batches)) == list(range(500))


# -- what datasets are told, and what they remember ---


class Telling(Dataset[int]):
    """Samples tell the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + index

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_state_tells_the_dataset_its_epoch_if_the_loader_had(kind: Any) -> None:
    loader = kind(Telling(), 2)
    loader.set_epoch(3)
    next(iter(loader))
    state = loader.state_dict()
    other = kind(Telling(), 2)
    other.load_state_dict(state)
    assert lists(other) == [[302, 303], [304, 305]]
    told_again = kind(Telling(), 2)
    told_again.load_state_dict(state)
    told_again.broadcast("set_epoch", 7)
    assert lists(told_again) == [[702, 703], [704, 705]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_that_nobody_told_is_not_told_by_a_state(kind: Any) -> None:
    loader = kind(Telling(), 2)
    list(loader)
    next(iter(loader))
    other = kind(Telling(), 2)
    other.load_state_dict(loader.state_dict())
    assert lists(other) == [[2, 3], [4, 5]]


@pytest.mark.parametrize("kind", KINDS)
def test_mixtures_are_told_every_epoch_by_the_loader(kind: Any) -> None:
    mixture = mix([list(range(20)), list(range(100, 120))], [0.5, 0.5], size=8)
    loader = kind(mixture, 4)
    came = {value for _ in range(5) for value in flat(loader)}
    assert came == {*range(20), *range(100, 120)}


class Network(torch.nn.Module):
    """Prepares samples with weights that are nobody's place in the data."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3), requires_grad=False)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_the_weights_of_a_module_are_no_state_of_a_dataset() -> None:
    loader: DataLoader[int] = DataLoader(Network(), 2)
    next(iter(loader))
    assert not loader.state_dict()["streams"]


class Remembering(Dataset[int]):
    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return index

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_of_a_dataset_needs_one_that_takes_it(kind: Any) -> None:
    loader = kind(Remembering(), 2)
    next(iter(loader))
    other = kind(list(range(6)), 2)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(BadState, match="has no load_state_dict"):
        next(iter(other))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_state_that_was_loaded_goes_with_a_copy(kind: Any, twin_of: Callable[[Any], Any]) -> None:
    loader = kind(list(range(10)), 2, shuffle=True, seed=3)
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), lists(batches)
    loader.load_state_dict(state)
    twin = twin_of(loader)
    assert twin.state_dict() == state
    assert lists(twin) == rest
    assert lists(loader) == rest, "each has its own"


# -- virtual epochs ---


@pytest.mark.parametrize("kind", KINDS)
def test_virtual_epochs_are_over_when_the_loader_is_closed(kind: Any) -> None:
    options = {"persistent" if kind is Loader else "persistent_workers": True}
    loader = kind(list(range(6)), 2, engine="thread", **{"workers" if kind is Loader else "num_workers": 1}, **options)
    epochs = loader.virtual_epochs(2)
    assert lists(next(epochs)) == [[0, 1], [2, 3]]
    loader.close()
    assert list(next(epochs)) == []
    with pytest.raises(StopIteration):
        next(epochs)


@pytest.mark.parametrize("kind", KINDS)
def test_virtual_epochs_of_a_foreign_order_go_on_after_an_exception(kind: Any) -> None:
    class Bad(Telling):
        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise ValueError("three")
            return index

    epochs = kind(Bad(), 2, sampler=list(range(6))).virtual_epochs(2)
    came: list[Any] = []
    failures = 0
    for _ in range(6):
        epoch = next(epochs)
        try:
            came.extend(batch.tolist() for batch in epoch)
        except ValueError:
            failures += 1
    assert failures > 1
    assert came[:4] == [[0, 1], [4, 5], [0, 1], [4, 5]], "no batch but the bad one is left out, and none comes twice"


@pytest.mark.parametrize("kind", KINDS)
def test_virtual_epochs_of_two_ranks_without_a_seed_are_disjoint(kind: Any, ranks: Callable[[int, int], None]) -> None:
    came = []
    for rank in range(2):
        ranks(rank, 2)
        torch.manual_seed(rank)
        loader = kind(list(range(40)), 2, shuffle=True)
        came.append(flat(next(loader.virtual_epochs(10))))
    assert sorted(came[0] + came[1]) == list(range(40))


# -- streams that the loader shares out ---


class Shuffled(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        numbers = list(range(40))
        random.shuffle(numbers)
        return iter(numbers)


def test_a_stream_that_shuffles_itself_is_the_same_in_every_worker() -> None:
    loader = DataLoader(Shuffled(), 4, shard=True, num_workers=2)
    assert sorted(flat(loader)) == list(range(40))


class Own(IterableDataset[float]):
    """Its numbers are other ones wherever it is iterated over."""

    def __iter__(self) -> Iterator[float]:
        return iter(np.random.default_rng().random(12).tolist())


def test_workers_that_read_something_else_are_noticed() -> None:
    loader = DataLoader(Own(), 2, shard=True, num_workers=2, engine="thread")
    with pytest.warns(UnequalStreams, match=r"feedline\.rng\(\)"):
        list(loader)


class Sized(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(21))

    def __len__(self) -> int:
        return 21


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
def test_the_length_of_a_shared_stream_is_this_ranks(kind: Any, tail: str, ranks: Callable[[int, int], None]) -> None:
    for rank in range(3):
        ranks(rank, 3)
        loader = kind(Sized(), 2, shard=tail)
        assert len(loader) == len(list(loader)) < 11
