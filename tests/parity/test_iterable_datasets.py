"""Iterable datasets: every worker iterates over its own copy, and their batches are delivered in turn."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from tests.parity import datasets
from tests.parity.sides import Parity, Side, same, same_inline, same_with_workers


@pytest.mark.parametrize(("lengths", "drop_last"), [((0, 4, 1), False), ((1, 9, 1), True)])
@same_with_workers
def test_workers_with_uneven_and_empty_streams(side: Side, lengths: tuple[int, ...], drop_last: bool) -> object:
    loader = side.loader(datasets.Uneven(lengths), batch_size=2, drop_last=drop_last, num_workers=3)
    return list(loader)


def test_an_iterable_that_is_not_an_iterable_dataset_raises_torchs_error(inline_parity: Parity) -> None:
    class Plain:
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    inline_parity.same_refusal(lambda side: list(side.loader(Plain(), batch_size=2)))


@same_inline
def test_inline_the_iterator_is_read_one_batch_at_a_time(side: Side) -> object:
    read = []

    class Noting(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for value in range(6):
                read.append(value)
                yield value

    return [list(read) for _ in side.loader(Noting(), batch_size=2)]


# torch's combinations


# Data pipes: the loader seeds their shufflers and gives each worker its shard


# Any: pipes, whose operators mypy does not know.
PIPES: dict[str, Callable[[Any], Any]] = {
    "shuffled, then sharded": lambda pipe: pipe.shuffle().sharding_filter(),
    "twice": lambda pipe: pipe.shuffle().map(datasets.double).shuffle(buffer_size=4).sharding_filter(),
}


def iter_pipe(name: str) -> Any:
    return PIPES[name](IterableWrapper(range(12)))


@pytest.mark.parametrize("name", PIPES)
@same
def test_iter_pipes_over_two_epochs(side: Side, name: str) -> object:
    loader = side.loader(iter_pipe(name), batch_size=3)
    return list(loader), list(loader)


@pytest.mark.parametrize(("name", "shuffle"), [("shuffled, then sharded", False), ("twice", None)])
@same
def test_shuffle_switches_the_shufflers_of_a_pipe(side: Side, name: str, shuffle: bool | None) -> object:
    return list(side.loader(iter_pipe(name), batch_size=3, shuffle=shuffle))


@same
def test_a_generator_seeds_the_shufflers_of_a_pipe(side: Side) -> object:
    generator = torch.Generator().manual_seed(99)
    loader = side.loader(iter_pipe("shuffled, then sharded"), batch_size=3, generator=generator)
    return list(loader), list(loader), torch.rand((), generator=generator)


@same
def test_map_pipes(side: Side) -> object:
    pipe: Any = SequenceWrapper(range(9))
    loader = side.loader(pipe.map(datasets.double), batch_size=2, shuffle=True)
    return list(loader), list(loader)


def test_shuffling_a_pipe_without_a_shuffler_warns(parity: Parity) -> None:
    warned = parity.same(lambda side: list(side.loader(IterableWrapper(range(5)), batch_size=2, shuffle=True))).warnings
    assert any("does not contain a `Shuffler`" in text for _, text in warned)
