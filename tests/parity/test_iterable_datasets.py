"""Iterable datasets: every worker iterates over its own copy, and their batches are delivered in turn."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset, ConcatDataset, IterableDataset, TensorDataset, random_split
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from tests.parity import datasets
from tests.parity.sides import Parity, Side

pytestmark = pytest.mark.sample(12)

# Samples per worker: even, uneven, empty first, empty last, all empty, one much longer.
LENGTHS = [(6, 6, 6), (5, 2, 3), (0, 4, 1), (4, 0, 0), (0, 0, 0), (1, 9, 1), (3, 3, 4)]


@pytest.mark.parametrize("batch_size", [None, 1, 2, 3])
def test_unsharded_data_is_repeated_by_every_worker(parity: Parity, batch_size: int | None) -> None:
    parity.same(lambda side: list(side.loader(datasets.Counting(7), batch_size=batch_size)))


@pytest.mark.parametrize("batch_size", [None, 1, 2, 100])
def test_sharded_data_comes_once(parity: Parity, batch_size: int | None) -> None:
    parity.same(lambda side: list(side.loader(datasets.Sharded(11), batch_size=batch_size)))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_workers_with_uneven_and_empty_streams(
    worker_parity: Parity, lengths: tuple[int, ...], drop_last: bool
) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Uneven(lengths), batch_size=2, drop_last=drop_last, num_workers=3)
        return list(loader)

    worker_parity.same(code)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_workers_with_uneven_and_empty_streams_without_batches(worker_parity: Parity, lengths: tuple[int, ...]) -> None:
    worker_parity.same(lambda side: list(side.loader(datasets.Uneven(lengths), batch_size=None, num_workers=3)))


@pytest.mark.parametrize("prefetch", [1, 3])
def test_uneven_streams_do_not_depend_on_prefetching(worker_parity: Parity, prefetch: int) -> None:
    def code(side: Side) -> object:
        dataset = datasets.Uneven((1, 7, 4))
        return list(side.loader(dataset, batch_size=2, num_workers=3, prefetch_factor=prefetch))

    worker_parity.same(code)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n", [0, 1, 5, 6])
def test_the_last_batch_is_kept_or_dropped(inline_parity: Parity, n: int, drop_last: bool) -> None:
    inline_parity.same(lambda side: list(side.loader(datasets.Counting(n), batch_size=3, drop_last=drop_last)))


@pytest.mark.slow
def test_the_interleaving_is_the_same_every_epoch(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Uneven((5, 1, 3)), batch_size=2, num_workers=3)
        return list(loader), list(loader), list(loader)

    observation = worker_parity.same(code)
    assert isinstance(observation.value, tuple)
    first, second, third = observation.value[1]
    assert first == second == third


def test_out_of_order_delivers_the_same_samples(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Uneven((5, 1, 3)), batch_size=2, num_workers=3, in_order=False)
        return sorted(batch.tolist() for batch in loader)

    worker_parity.same(code)


def test_persistent_workers_restart_the_stream_in_every_epoch(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Uneven((3, 0, 5)), batch_size=2, num_workers=3, persistent_workers=True)
        return list(loader), list(loader), list(loader)

    worker_parity.same(code)


def test_persistent_workers_keep_their_copy_of_the_dataset(process_parity: Parity) -> None:
    def code(side: Side) -> object:
        dataset = datasets.Resumed(4)
        loader = side.loader(dataset, batch_size=2, persistent_workers=True)
        return list(loader), list(loader), dataset.value

    process_parity.same(code)


def test_other_workers_get_a_new_copy_every_epoch(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        dataset = datasets.Resumed(4)
        loader = side.loader(dataset, batch_size=2)
        return list(loader), list(loader), dataset.value

    worker_parity.same(code)


def test_inline_the_dataset_itself_is_iterated(inline_parity: Parity) -> None:
    def code(side: Side) -> object:
        dataset = datasets.Resumed(4)
        loader = side.loader(dataset, batch_size=3)
        return list(loader), list(loader), dataset.value

    inline_parity.same(code)


def test_each_worker_gets_its_part_from_the_init_function(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        dataset = datasets.Span(3, 14)
        loader = side.loader(dataset, batch_size=2, worker_init_fn=datasets.split_span)
        return list(loader), list(loader), (dataset.start, dataset.end)

    worker_parity.same(code)


def test_an_endless_dataset_is_left_early(parity: Parity) -> None:
    def code(side: Side) -> object:
        return list(itertools.islice(side.loader(datasets.Endless(), batch_size=3), 7))

    parity.same(code)


def test_an_iterator_is_not_read_after_its_end(parity: Parity) -> None:
    parity.same(lambda side: list(side.loader(datasets.RestlessIterator(), batch_size=2)))


def test_a_finished_epoch_delivers_nothing_more(inline_parity: Parity) -> None:
    def code(side: Side) -> object:
        iterator = iter(side.loader(datasets.RestlessIterator(), batch_size=2))
        first = list(iterator)
        return first, list(iterator)

    inline_parity.same(code)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_streams_of_dicts(parity: Parity, batch_size: int | None) -> None:
    parity.same(lambda side: list(side.loader(datasets.Mixed(), batch_size=batch_size)))


@pytest.mark.parametrize("collate", [datasets.as_list, datasets.as_tuple, datasets.count, datasets.nothing])
def test_custom_collate_functions(parity: Parity, collate: Any) -> None:
    parity.same(lambda side: list(side.loader(datasets.Sharded(7), batch_size=3, collate_fn=collate)))


def test_shuffle_false_is_accepted(parity: Parity) -> None:
    parity.same(lambda side: list(side.loader(datasets.Sharded(7), batch_size=3, shuffle=False)))


def test_an_iterable_that_is_not_an_iterable_dataset_raises_torchs_error(inline_parity: Parity) -> None:
    class Plain:
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    inline_parity.same_refusal(lambda side: list(side.loader(Plain(), batch_size=2)))


def test_a_dataset_may_end_before_its_reported_length(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.SizedCounting(3, 50), batch_size=2)
        return len(loader), list(loader)

    parity.same(code)


def test_inline_the_iterator_is_read_one_batch_at_a_time(inline_parity: Parity) -> None:
    def code(side: Side) -> object:
        read = []

        class Noting(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                for value in range(6):
                    read.append(value)
                    yield value

        return [list(read) for _ in side.loader(Noting(), batch_size=2)]

    inline_parity.same(code)


# torch's combinations


def test_chained_streams(parity: Parity) -> None:
    def code(side: Side) -> object:
        chain = ChainDataset([datasets.Sharded(5), datasets.Sharded(4)])
        return list(side.loader(chain, batch_size=2))

    parity.same(code)


def test_a_sum_of_iterables_is_a_chain(parity: Parity) -> None:
    parity.same(lambda side: list(side.loader(datasets.Counting(3) + datasets.Counting(4), batch_size=2)))


def test_a_chain_of_map_datasets_raises_torchs_error(inline_parity: Parity) -> None:
    def code(side: Side) -> object:
        return list(side.loader(ChainDataset([datasets.Squares(3)]), batch_size=2))

    inline_parity.same_refusal(code)


def test_iterables_cannot_be_concatenated(inline_parity: Parity) -> None:
    def code(side: Side) -> object:
        return side.loader(ConcatDataset([datasets.Counting(3)]))

    inline_parity.same_refusal(code)


@pytest.mark.parametrize("lengths", [[6, 4], [0.5, 0.3, 0.2]])
def test_random_splits(parity: Parity, lengths: list[Any]) -> None:
    def code(side: Side) -> object:
        dataset = TensorDataset(torch.arange(10))
        parts = random_split(dataset, lengths, generator=torch.Generator().manual_seed(2))
        return [list(side.loader(part, batch_size=2, shuffle=True)) for part in parts]

    parity.same(code)


# Data pipes: the loader seeds their shufflers and gives each worker its shard


def iter_pipe(name: str) -> Any:
    pipe: Any = IterableWrapper(range(12))
    if name == "plain":
        return pipe
    if name == "mapped":
        return pipe.map(datasets.double)
    if name == "batched":
        return pipe.batch(2)
    if name == "sharded":
        return pipe.sharding_filter()
    if name == "shuffled":
        return pipe.shuffle()
    if name == "shuffled, then sharded":
        return pipe.shuffle().sharding_filter()
    if name == "small buffer":
        return pipe.shuffle(buffer_size=3).sharding_filter()
    return pipe.shuffle().map(datasets.double).shuffle(buffer_size=4).sharding_filter()


PIPES = ["plain", "mapped", "batched", "sharded", "shuffled", "shuffled, then sharded", "small buffer", "twice"]


@pytest.mark.parametrize("name", PIPES)
def test_iter_pipes_over_two_epochs(parity: Parity, name: str) -> None:
    def code(side: Side) -> object:
        loader = side.loader(iter_pipe(name), batch_size=3)
        return list(loader), list(loader)

    parity.same(code)


@pytest.mark.parametrize("shuffle", [True, False, None])
@pytest.mark.parametrize("name", ["plain", "shuffled, then sharded", "twice"])
def test_shuffle_switches_the_shufflers_of_a_pipe(parity: Parity, name: str, shuffle: bool | None) -> None:
    def code(side: Side) -> object:
        return list(side.loader(iter_pipe(name), batch_size=3, shuffle=shuffle))

    parity.same(code)


@pytest.mark.parametrize("seed", [0, 99])
def test_a_generator_seeds_the_shufflers_of_a_pipe(parity: Parity, seed: int) -> None:
    def code(side: Side) -> object:
        generator = torch.Generator().manual_seed(seed)
        loader = side.loader(iter_pipe("shuffled, then sharded"), batch_size=3, generator=generator)
        return list(loader), list(loader), torch.rand((), generator=generator)

    parity.same(code)


def test_persistent_workers_get_a_new_shuffle_every_epoch(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(iter_pipe("shuffled, then sharded"), batch_size=3, persistent_workers=True)
        return list(loader), list(loader), list(loader)

    worker_parity.same(code)


def test_a_pipe_with_an_init_function(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(iter_pipe("sharded"), batch_size=3, worker_init_fn=datasets.init_nothing)
        return list(loader)

    worker_parity.same(code)


def test_a_pipe_without_batches(parity: Parity) -> None:
    parity.same(lambda side: list(side.loader(iter_pipe("shuffled, then sharded"), batch_size=None)))


def test_a_pipe_read_twice_inline(inline_parity: Parity) -> None:
    """A pipe has one valid iterator at a time; the second one ends the first, with torch's message."""

    def code(side: Side) -> object:
        loader = side.loader(IterableWrapper(range(6)), batch_size=2)
        one, two = iter(loader), iter(loader)
        first = next(two)
        return first, next(one)

    expected, actual = inline_parity.both(code)
    assert (actual.failure is None) == (expected.failure is None)
    assert actual.value == expected.value


@pytest.mark.parametrize("shuffle", [True, False, None])
def test_map_pipes(parity: Parity, shuffle: bool | None) -> None:
    def code(side: Side) -> object:
        pipe: Any = SequenceWrapper(range(9))
        loader = side.loader(pipe.map(datasets.double), batch_size=2, shuffle=shuffle)
        return list(loader), list(loader)

    parity.same(code)


def test_a_shuffled_map_pipe_is_iterable_and_seeded(parity: Parity) -> None:
    def code(side: Side) -> object:
        pipe: Any = SequenceWrapper(range(9))
        loader = side.loader(pipe.shuffle(), batch_size=2)
        return list(loader), list(loader)

    parity.same(code)


def test_shuffling_a_pipe_without_a_shuffler_warns(parity: Parity) -> None:
    warned = parity.same(lambda side: list(side.loader(IterableWrapper(range(5)), batch_size=2, shuffle=True))).warnings
    assert any("does not contain a `Shuffler`" in text for _, text in warned)


def test_the_dataset_attribute_of_a_pipe_is_torchs_wrapper(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(IterableWrapper(range(5)), batch_size=2)
        mapped = side.loader(SequenceWrapper(range(5)), batch_size=2)
        return type(loader.dataset), type(mapped.dataset), len(loader), len(mapped)

    parity.same(code)
