"""With a seed, batches are the same to the last bit on every engine; without one, torch's rules hold."""

import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset

import feedline
from feedline import DataLoader, Loader
from feedline.errors import DataWarning
from feedline.types import EngineName
from tests.order import datasets
from tests.order.facts import all_bytes, as_bytes, interrupted, rows, values

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


@pytest.mark.parametrize("workers", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_processes_make_the_batches_of_the_inline_engine(workers: int) -> None:
    loader = seeded("drawing", num_workers=workers, engine="process")
    assert [all_bytes(loader), all_bytes(loader)] == expected("drawing")


@pytest.mark.parametrize(
    ("name", "collate"),
    [("drawing unevenly", "default"), ("drawing at once", "drawing"), ("drawing inside", "default")],
)
def test_every_kind_of_dataset_makes_the_same_batches_in_processes(name: str, collate: str) -> None:
    loader = seeded(name, collate, num_workers=2)
    assert [all_bytes(loader), all_bytes(loader)] == expected(name, collate)


def test_a_dataset_that_draws_globally_is_moved_from_threads_to_processes() -> None:
    loader = seeded("drawing", num_workers=2, engine="thread")
    before = global_generators()
    with pytest.warns(DataWarning, match=r"Drawing draws random numbers from random and numpy\.random and torch"):
        first = all_bytes(loader)
    assert loader.stats()["engine"] == "process"
    assert [first, all_bytes(loader)] == expected("drawing")  # and it warns once
    assert global_generators() == before


@pytest.mark.parametrize("workers", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_threads_make_the_batches_of_the_inline_engine(workers: int) -> None:
    loader = seeded("drawing own", num_workers=workers, engine="thread")
    assert [all_bytes(loader), all_bytes(loader)] == expected("drawing own")
    assert loader.stats()["engine"] == "thread"


@pytest.mark.slow
@pytest.mark.parametrize(("method", "workers"), [("forkserver", 2), ("spawn", 1)])
def test_workers_that_are_not_forked_make_the_same_batches(method: str, workers: int) -> None:
    loader = seeded("drawing", "drawing", num_workers=workers, multiprocessing_context=method, persistent_workers=True)
    assert [all_bytes(loader), all_bytes(loader)] == expected("drawing", "drawing")
    loader.close()


# Collate functions


# Batches


@pytest.mark.parametrize("batch_size", [1, 8, N + 1, None])
def test_a_sample_draws_the_same_numbers_for_any_batch_size(batch_size: int | None) -> None:
    batches = list(seeded("drawing", batch_size=batch_size))
    if batch_size is None:
        batches = [np.asarray(sample)[None] for sample in batches]
    assert rows(batches) == rows(seeded("drawing"))


def test_batches_delivered_out_of_order_draw_the_same_numbers() -> None:
    loader = seeded("drawing", num_workers=3, in_order=False)
    assert sorted(all_bytes(loader)) == sorted(expected("drawing")[0])


# Resumption


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"num_workers": 2}), ({"num_workers": 1, "prefetch_factor": 4}, {}), ({"num_workers": 3}, {})],
)
def test_batches_are_the_same_after_a_resumption_elsewhere(before: dict[str, Any], after: dict[str, Any]) -> None:
    taken, resumed = interrupted(lambda: seeded("drawing", **before), 3, lambda: seeded("drawing", **after))
    assert [all_bytes(taken) + all_bytes(resumed), all_bytes(resumed)] == expected("drawing")


def test_a_resumption_with_another_batch_size_draws_the_same() -> None:
    taken, resumed = interrupted(lambda: seeded("drawing"), 3, lambda: seeded("drawing", batch_size=4))
    assert rows(taken) + rows(resumed) == rows(seeded("drawing"))


# Loader, without torch


@pytest.mark.parametrize(("workers", "shuffle"), [(0, False), (2, True)])
def test_both_loaders_make_the_same_batches(workers: int, shuffle: bool) -> None:
    ours = Loader(DATASETS["drawing"], 5, shuffle=shuffle, seed=SEED, workers=workers)
    torchs = seeded("drawing", shuffle=shuffle)
    assert [all_bytes(ours), all_bytes(ours)] == [all_bytes(torchs), all_bytes(torchs)]


def test_a_state_of_one_loader_loads_into_the_other() -> None:
    def without_torch() -> Loader:
        return Loader(DATASETS["drawing"], 5, shuffle=True, seed=SEED)

    taken, resumed = interrupted(lambda: seeded("drawing", num_workers=2), 3, without_torch)
    assert all_bytes(taken) + all_bytes(resumed) == expected("drawing")[0]


# Streams


@pytest.mark.parametrize(("generator", "eagerly"), [("random", True), ("torch", False), ("own", True)])
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
