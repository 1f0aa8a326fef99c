"""With a seed, batches are the same to the last bit on every engine; without one, torch's rules hold."""

import itertools
import random
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset

import feedline
from feedline import DataLoader, DataLoader2, Loader
from feedline.errors import DataWarning
from feedline.types import EngineName
from tests.order import datasets
from tests.order.facts import all_bytes, as_bytes, rows, values

pytestmark = pytest.mark.sample(7)

N = 37
SEED = 7

DATASETS: dict[str, Dataset[Any]] = {
    "drawing": datasets.Drawing(N),
    "drawing unevenly": datasets.DrawingUnevenly(N),
    "drawing own": datasets.DrawingOwn(N),
    "drawing at once": datasets.DrawingAtOnce(N),
    "drawing inside": datasets.DrawingInside(11),
}

COLLATES: dict[str, Any] = {
    "default": None,
    "drawing": datasets.drawing_collate,
    "drawing own": datasets.drawing_own_collate,
}


def seeded(dataset: str, collate: str = "default", **options: Any) -> DataLoader[Any]:
    given: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": SEED, "collate_fn": COLLATES[collate]}
    return DataLoader(DATASETS[dataset], **{**given, **options})


@cache
def expected(dataset: str, collate: str = "default") -> list[Any]:
    """Two epochs, made inline."""
    loader = seeded(dataset, collate)
    return [all_bytes(loader), all_bytes(loader)]


def global_generators() -> list[Any]:
    name, words, *rest = np.random.get_state(legacy=True)
    return [random.getstate(), name, np.asarray(words).tobytes(), rest, torch.get_rng_state().numpy().tobytes()]


def test_the_compared_batches_are_random() -> None:
    first, second = ([batch[2] for batch in epoch] for epoch in expected("drawing"))
    assert len({*first, *second}) == len(first) + len(second)
    draws = np.concatenate([np.asarray(batch) for batch in seeded("drawing")])[:, 1:]
    assert len(np.unique(draws)) == draws.size, "two samples or two generators drew the same number"
    assert all_bytes(seeded("drawing", seed=SEED + 1)) != expected("drawing")[0]


# Workers and engines


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_processes_make_the_batches_of_the_inline_engine(workers: int) -> None:
    loader = seeded("drawing", num_workers=workers, engine="process")
    assert [all_bytes(loader), all_bytes(loader)] == expected("drawing")


@pytest.mark.parametrize("options", [{"persistent_workers": True}, {"prefetch_factor": 1}])
def test_processes_with_options_make_the_batches_of_the_inline_engine(options: dict[str, Any]) -> None:
    loader = seeded("drawing", num_workers=3, engine="process", **options)
    assert [all_bytes(loader), all_bytes(loader)] == expected("drawing")
    loader.close()


@pytest.mark.parametrize("name", ["drawing unevenly", "drawing at once", "drawing inside"])
def test_every_kind_of_dataset_makes_the_same_batches_in_processes(name: str) -> None:
    loader = seeded(name, num_workers=2)
    assert [all_bytes(loader), all_bytes(loader)] == expected(name)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_dataset_that_draws_globally_is_moved_from_threads_to_processes(workers: int) -> None:
    loader = seeded("drawing", num_workers=workers, engine="thread")
    before = global_generators()
    with pytest.warns(DataWarning, match=r"Drawing draws random numbers from random and numpy\.random and torch"):
        first = all_bytes(loader)
    assert loader.stats()["engine"] == "process"
    assert [first, all_bytes(loader)] == expected("drawing")  # and it warns once
    assert global_generators() == before


def test_dataloader2_is_moved_from_threads_to_processes_too() -> None:
    loader = DataLoader2(DATASETS["drawing"], 5, shuffle=True, seed=SEED, num_workers=2)
    with pytest.warns(DataWarning):
        assert all_bytes(loader) == expected("drawing")[0]


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_threads_make_the_batches_of_the_inline_engine(workers: int) -> None:
    loader = seeded("drawing own", num_workers=workers, engine="thread")
    assert [all_bytes(loader), all_bytes(loader)] == expected("drawing own")
    assert loader.stats()["engine"] == "thread"


def test_persistent_threads_make_the_batches_of_the_inline_engine() -> None:
    loader = seeded("drawing own", num_workers=2, engine="thread", persistent_workers=True)
    assert [all_bytes(loader), all_bytes(loader)] == expected("drawing own")
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "workers"), [("forkserver", 2), ("spawn", 1)])
def test_workers_that_are_not_forked_make_the_same_batches(method: str, workers: int) -> None:
    loader = seeded("drawing", "drawing", num_workers=workers, multiprocessing_context=method, persistent_workers=True)
    assert [all_bytes(loader), all_bytes(loader)] == expected("drawing", "drawing")
    loader.close()


# Collate functions


@pytest.mark.parametrize("name", ["drawing", "drawing at once"])
def test_a_collate_function_that_draws_is_reproducible_in_processes(name: str) -> None:
    loader = seeded(name, "drawing", num_workers=2)
    assert [all_bytes(loader), all_bytes(loader)] == expected(name, "drawing")


def test_a_collate_function_that_draws_is_reproducible_on_threads() -> None:
    loader = seeded("drawing own", "drawing own", num_workers=3, engine="thread")
    assert [all_bytes(loader), all_bytes(loader)] == expected("drawing own", "drawing own")


def test_a_collate_function_that_draws_globally_keeps_its_dataset_from_threads() -> None:
    loader = seeded("drawing own", "drawing", num_workers=2, engine="thread")
    with pytest.warns(DataWarning):
        assert all_bytes(loader) == expected("drawing own", "drawing")[0]


def test_draws_of_a_collate_function_do_not_change_samples() -> None:
    with_draws = [batch["samples"] for batch in seeded("drawing", "drawing")]
    assert rows(with_draws) == rows(seeded("drawing"))


def test_the_collate_function_draws_other_numbers_for_each_batch() -> None:
    loader = seeded("drawing", "drawing")
    drawn = [batch["batch"].tobytes() for batch in itertools.chain(loader, loader)]
    assert len(set(drawn)) == len(drawn)


# Batches


@pytest.mark.parametrize("batch_size", [1, 2, 8, N, N + 1, None])
def test_a_sample_draws_the_same_numbers_for_any_batch_size(batch_size: int | None) -> None:
    batches = list(seeded("drawing", batch_size=batch_size))
    if batch_size is None:
        batches = [np.asarray(sample)[None] for sample in batches]
    assert rows(batches) == rows(seeded("drawing"))


def test_single_samples_from_workers_are_the_same() -> None:
    assert all_bytes(seeded("drawing", batch_size=None, num_workers=2)) == all_bytes(seeded("drawing", batch_size=None))


def test_drop_last_changes_nothing_else() -> None:
    assert all_bytes(seeded("drawing", drop_last=True, num_workers=2)) == expected("drawing")[0][:-1]


def test_without_shuffling_every_epoch_draws_other_numbers() -> None:
    inline, workers = (seeded("drawing", shuffle=False, num_workers=count) for count in (0, 2))
    first, second = list(inline), list(inline)
    assert [batch[:, 0].tolist() for batch in first] == [batch[:, 0].tolist() for batch in second]
    assert not any((one[:, 1:] == two[:, 1:]).any() for one, two in zip(first, second, strict=True))
    assert [all_bytes(workers), all_bytes(workers)] == [all_bytes(first), all_bytes(second)]


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_samplers_keep_their_order_and_the_samples_still_draw_by_the_seed(workers: int) -> None:
    def batches(count: int) -> list[Any]:
        sampler = torch.utils.data.RandomSampler(range(N), generator=torch.Generator().manual_seed(3))
        return all_bytes(seeded("drawing", shuffle=None, sampler=sampler, num_workers=count))

    assert batches(workers) == batches(0)


def test_batches_delivered_out_of_order_draw_the_same_numbers() -> None:
    loader = seeded("drawing", num_workers=3, in_order=False)
    assert sorted(all_bytes(loader)) == sorted(expected("drawing")[0])


# Resumption


OTHER_WORKERS: list[dict[str, Any]] = [
    {"num_workers": 2},
    {"num_workers": 3},
    {"num_workers": 1, "prefetch_factor": 4},
]
MOVES: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, options) for options in OTHER_WORKERS] + [
    (options, {}) for options in OTHER_WORKERS
]


@pytest.mark.parametrize(("before", "after"), MOVES)
def test_batches_are_the_same_after_a_resumption_elsewhere(before: dict[str, Any], after: dict[str, Any]) -> None:
    loader = seeded("drawing", **before)
    batches = iter(loader)
    taken = all_bytes(itertools.islice(batches, 3))
    state = loader.state_dict()
    del batches
    resumed = seeded("drawing", **after)
    resumed.load_state_dict(state)
    assert [taken + all_bytes(resumed), all_bytes(resumed)] == expected("drawing")


def test_batches_are_the_same_after_a_resumption_on_threads() -> None:
    loader = seeded("drawing own", "drawing own", num_workers=2)
    taken = all_bytes(itertools.islice(loader, 3))
    resumed = seeded("drawing own", "drawing own", num_workers=4, engine="thread")
    resumed.load_state_dict(loader.state_dict())
    assert [taken + all_bytes(resumed), all_bytes(resumed)] == expected("drawing own", "drawing own")


def test_a_resumed_collate_function_draws_the_same() -> None:
    loader = seeded("drawing", "drawing")
    taken = all_bytes(itertools.islice(loader, 2))
    resumed = seeded("drawing", "drawing", num_workers=2)
    resumed.load_state_dict(loader.state_dict())
    assert taken + all_bytes(resumed) == expected("drawing", "drawing")[0]


def test_a_resumption_with_another_batch_size_draws_the_same() -> None:
    loader = seeded("drawing")
    taken = list(itertools.islice(loader, 3))
    resumed = seeded("drawing", batch_size=4)
    resumed.load_state_dict(loader.state_dict())
    assert rows(taken) + rows(resumed) == rows(seeded("drawing"))


# Loader, without torch


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_both_loaders_make_the_same_batches(workers: int, shuffle: bool) -> None:
    ours = Loader(DATASETS["drawing"], 5, shuffle=shuffle, seed=SEED, workers=workers)
    torchs = seeded("drawing", shuffle=shuffle)
    assert [all_bytes(ours), all_bytes(ours)] == [all_bytes(torchs), all_bytes(torchs)]


def test_both_loaders_make_the_same_batches_with_a_collate_function_that_draws() -> None:
    ours = Loader(
        DATASETS["drawing"], 5, shuffle=True, seed=SEED, collate_fn=datasets.drawing_collate, drop_last=True, workers=2
    )
    assert all_bytes(ours) == expected("drawing", "drawing")[0][:-1]


def test_a_state_of_one_loader_loads_into_the_other() -> None:
    loader = seeded("drawing", num_workers=2)
    taken = all_bytes(itertools.islice(loader, 3))
    ours = Loader(DATASETS["drawing"], 5, shuffle=True, seed=SEED)
    ours.load_state_dict(loader.state_dict())
    assert taken + all_bytes(ours) == expected("drawing")[0]


def test_the_loader_without_torch_leaves_threads_too() -> None:
    loader = Loader(DATASETS["drawing"], 5, shuffle=True, seed=SEED, workers=2, engine="thread")
    with pytest.warns(DataWarning):
        assert all_bytes(loader) == expected("drawing")[0]
    own = Loader(DATASETS["drawing own"], 5, shuffle=True, seed=SEED, workers=3, engine="thread")
    assert all_bytes(own) == expected("drawing own")[0]
    assert own.stats()["engine"] == "thread"


# Streams


def stream(dataset: Any, workers: int, **options: Any) -> list[Any]:
    given: dict[str, Any] = {"batch_size": 4, "shard": True, "seed": SEED, "collate_fn": datasets.drawing_collate}
    loader = DataLoader(dataset, num_workers=workers, **{**given, **options})
    return [all_bytes(loader), all_bytes(loader)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_sharded_stream_is_the_same_for_any_number_of_workers(workers: int) -> None:
    dataset = datasets.DrawingStream(22)
    inline = stream(dataset, 0)
    assert len(inline[0]) == 6
    assert inline[0] != inline[1]
    assert stream(dataset, workers) == inline


def test_a_stream_on_threads_is_the_same() -> None:
    dataset = datasets.DrawingOwnStream(22)
    own = {"collate_fn": datasets.drawing_own_collate}
    assert stream(dataset, 3, engine="thread", **own) == stream(dataset, 0, **own)


def test_a_stream_without_batches_is_the_same_for_any_number_of_workers() -> None:
    dataset = datasets.DrawingStream(9)
    options = {"batch_size": None, "collate_fn": None}
    assert stream(dataset, 2, **options) == stream(dataset, 0, **options)


def test_both_loaders_make_the_same_batches_from_a_stream() -> None:
    dataset = datasets.DrawingStream(22)
    ours = Loader(dataset, 4, seed=SEED, collate_fn=datasets.drawing_collate, workers=2)
    assert [all_bytes(ours), all_bytes(ours)] == stream(dataset, 0)


@pytest.mark.parametrize("eagerly", [True, False])
@pytest.mark.parametrize("generator", ["random", "numpy", "torch", "own"])
def test_a_stream_that_shuffles_itself_is_the_same_on_every_engine(generator: str, eagerly: bool) -> None:
    def orders(workers: int, **options: Any) -> list[Any]:
        dataset = datasets.ShuffledStream(13, generator, eagerly=eagerly)
        loader = DataLoader(dataset, batch_size=2, shard=True, seed=SEED, num_workers=workers, **options)
        found = [values(loader), values(loader)]
        loader.close()
        return found

    before = global_generators()
    inline = orders(0)
    assert global_generators() == before
    assert inline[0] != inline[1], "another order in every epoch"
    assert orders(2) == inline
    assert [sorted(itertools.chain(*epoch)) for epoch in inline] == [list(range(13))] * 2
    if eagerly:
        assert orders(3, persistent_workers=True) == inline
    if generator == "own":
        assert orders(2, engine="thread") == inline


def test_a_stream_that_shuffles_itself_resumes_in_its_order() -> None:
    def loader(workers: int) -> Any:
        dataset = datasets.ShuffledStream(13, "random", eagerly=True)
        return DataLoader(dataset, batch_size=2, shard=True, seed=SEED, num_workers=workers)

    begun = loader(0)
    iterator = iter(begun)
    taken = values(itertools.islice(iterator, 3))
    rest = values(iterator)
    begun = loader(2)
    assert values(itertools.islice(begun, 3)) == taken
    resumed = loader(1)
    resumed.load_state_dict(begun.state_dict())
    assert values(resumed) == rest


@pytest.mark.parametrize("generator", ["random", "own"])
def test_per_worker_streams_that_shuffle_themselves_are_reproducible_and_different(generator: str) -> None:
    def orders(**options: Any) -> list[Any]:
        dataset = datasets.ShuffledStream(20, generator, eagerly=True)
        # With an init function, so that there is no warning about workers that repeat each other.
        loader = DataLoader(
            dataset, batch_size=20, num_workers=2, seed=SEED, worker_init_fn=datasets.do_nothing, **options
        )
        found = [order for _ in range(2) for order in values(loader)]
        loader.close()
        return found

    found = orders()
    assert len({str(order) for order in found}) == 4, "every worker and epoch has its own order"
    assert orders() == found
    assert orders(persistent_workers=True) == found


def test_per_worker_streams_are_reproducible_and_different() -> None:
    loader = DataLoader(datasets.RandomStream(4), batch_size=2, num_workers=2, seed=SEED)
    first, second = values(loader), values(loader)
    again = DataLoader(datasets.RandomStream(4), batch_size=2, num_workers=2, seed=SEED, persistent_workers=True)
    assert [values(again), values(again)] == [first, second]
    again.close()
    drawn = [value for batch in first + second for value in batch]
    assert len(set(drawn)) == len(drawn) == 16


# The caller's generators


def make_batches(engine: EngineName) -> Iterator[Any]:
    dataset = DATASETS["drawing own" if engine == "thread" else "drawing"]
    collate = datasets.drawing_own_collate if engine == "thread" else datasets.drawing_collate
    workers = 0 if engine == "inline" else 2
    loader = DataLoader(dataset, 5, shuffle=True, seed=SEED, engine=engine, num_workers=workers, collate_fn=collate)
    yield from loader


def test_a_seeded_loader_leaves_the_callers_generators_alone(engine: EngineName) -> None:
    random.gauss(0, 1)
    np.random.normal()
    torch.randn(())
    before = global_generators()
    for batch in make_batches(engine):
        assert global_generators() == before
        del batch
    assert global_generators() == before


def test_draws_of_the_caller_do_not_change_the_batches() -> None:
    seen = []
    for number, batch in enumerate(seeded("drawing")):
        seen.append(as_bytes(batch))
        torch.manual_seed(number % 2)
        np.random.seed(5)
        random.seed(5)
        datasets.draw_everywhere()
        feedline.rng().random()
    assert seen == expected("drawing")[0]


def test_the_callers_generators_are_restored_when_a_sample_fails() -> None:
    before = global_generators()
    batches = iter(DataLoader(datasets.Failing(6, at=[3]), batch_size=2, seed=SEED))
    next(batches)
    with pytest.raises(LookupError):
        next(batches)
    assert global_generators() == before
    assert feedline.rng() is feedline.rng(), "outside a loader rng() is one ordinary generator"


def test_two_interleaved_seeded_loaders_are_independent() -> None:
    one, two = seeded("drawing"), seeded("drawing", seed=SEED + 1)
    alone = [all_bytes(one), all_bytes(two)]
    one, two = seeded("drawing"), seeded("drawing", seed=SEED + 1)
    pairs = [(as_bytes(a), as_bytes(b)) for a, b in zip(one, two, strict=True)]
    assert [list(part) for part in zip(*pairs, strict=True)] == alone


def test_generators_that_a_dataset_keeps_stay_independent() -> None:
    kept = []

    class Keeping(datasets.Sized):
        def __getitem__(self, index: int) -> Any:
            kept.append(feedline.rng())
            return index

    for _ in DataLoader(Keeping(4), batch_size=2, seed=SEED):
        pass
    assert len({generator.random() for generator in kept}) == 4


def test_a_sample_has_its_own_generator_without_a_seed_too() -> None:
    loader = DataLoader(datasets.DrawingOwn(8), batch_size=4, num_workers=2)
    batches = [batch[:, 1:] for batch in loader]
    drawn = torch.cat(batches).unique()
    assert len(drawn) == 8 * 3


# Without a seed: torch's rules


def unseeded(kind: Any, workers: int, generator: torch.Generator | None = None, **options: Any) -> Any:
    torch.manual_seed(11)
    loader = kind(datasets.Whose(6), batch_size=1, shuffle=True, num_workers=workers, generator=generator, **options)
    return values(loader), values(loader), torch.rand(()).item()


def test_worker_seeds_are_torchs_distinct_and_reproducible() -> None:
    first, second, after = unseeded(DataLoader, 2)
    assert (first, second, after) == unseeded(torch.utils.data.DataLoader, 2)
    seeds = {(worker[0], seed[0]) for worker, seed in first}
    assert len(seeds) == 2
    assert len({seed for _, seed in seeds}) == 2
    assert seeds.isdisjoint((worker[0], seed[0]) for worker, seed in second), "another epoch, another base seed"


def test_worker_seeds_come_from_the_given_generator_and_torchs_default_is_left_alone() -> None:
    ours, theirs = (
        unseeded(kind, 2, torch.Generator().manual_seed(5)) for kind in (DataLoader, torch.utils.data.DataLoader)
    )
    assert ours == theirs
    torch.manual_seed(11)
    assert ours[2] == torch.rand(()).item()


@pytest.mark.parametrize("workers", [0, 2])
def test_manual_seed_reproduces_a_shuffle(workers: int) -> None:
    def order(kind: Any, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return values(kind(datasets.Sized(20), batch_size=4, shuffle=True, num_workers=workers))

    assert order(DataLoader, 1) == order(DataLoader, 1) == order(torch.utils.data.DataLoader, 1)
    assert order(DataLoader, 1) != order(DataLoader, 2)


def test_an_init_function_can_reseed_as_with_torch() -> None:
    def init(worker: int) -> None:
        random.seed(worker)
        np.random.seed(torch.initial_seed() % (1 << 32))

    def drawn(kind: Any) -> list[Any]:
        torch.manual_seed(2)
        return all_bytes(kind(datasets.Drawing(6), batch_size=1, num_workers=2, worker_init_fn=init))

    def others(batches: list[Any]) -> list[Any]:
        return [
            np.frombuffer(data)[:7].tolist() for _, _, data in batches
        ]  # without rng(), which torch's loader does not know

    assert others(drawn(DataLoader)) == others(drawn(torch.utils.data.DataLoader))


def test_with_a_seed_an_init_function_does_not_change_samples() -> None:
    def init(worker: int) -> None:
        random.seed(worker)
        np.random.seed(worker)
        torch.manual_seed(worker)
        datasets.draw_everywhere()

    assert all_bytes(seeded("drawing", num_workers=2, worker_init_fn=init)) == expected("drawing")[0]


def test_with_a_seed_worker_seeds_follow_from_it() -> None:
    def seeds() -> tuple[list[Any], list[Any]]:
        loader = DataLoader(datasets.Whose(4), batch_size=1, num_workers=2, seed=SEED)
        return values(loader), values(loader)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = seeds()
        torch.manual_seed(1)
        assert seeds() == (first, second)
    assert first != second
