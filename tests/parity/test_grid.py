"""Combinations of all settings.

Inline, every order and every dataset is run with every batch size and every collate function. With workers, where every
case has to start processes, `make slow` runs a selection in which every pair of settings occurs together in at least
one case, and `make test` the cases of it that cover most pairs.
"""

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tests.parity import datasets
from tests.parity.sides import Side, same_in_processes, same_inline, same_with_workers

N = 11


def tensors() -> Any:
    return TensorDataset(torch.arange(2 * N).reshape(N, 2), torch.arange(N, dtype=torch.float32))


DATASETS: dict[str, Callable[[], Any]] = {
    "tensors": tensors,
    "plain": lambda: datasets.Squares(N),
    "pairs": lambda: datasets.Pairs(N),
    "records": lambda: datasets.Records(N),
    "arrays": lambda: datasets.Arrays(N),
    "bulk": lambda: datasets.Bulk(N),
    "subset": lambda: Subset(TensorDataset(torch.arange(20)), range(1, 12)),
    "concatenation": lambda: ConcatDataset([TensorDataset(torch.arange(4)), TensorDataset(-torch.arange(7))]),
}
ITERABLES: dict[str, Callable[[], Any]] = {
    "counting": lambda: datasets.Counting(N),
    "sharded": lambda: datasets.Sharded(N),
    "uneven": lambda: datasets.Uneven((5, 0, 4)),
}

Options = Mapping[str, Any]  # Any: torch's arguments

ORDERS: dict[str, Callable[[], Options]] = {
    "sequential": lambda: {},
    "shuffled": lambda: {"shuffle": True},
    "shuffled by a generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "with replacement": lambda: {"sampler": RandomSampler(range(N), replacement=True, num_samples=14)},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0 + i for i in range(N)], 9)},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(2, 9))},
    "distributed": lambda: {"sampler": DistributedSampler(datasets.Squares(N), num_replicas=2, rank=1)},
    "list": lambda: {"sampler": [10, 0, 5, 5, 1]},
    "batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(N)), 4, False)},
    "list of batches": lambda: {"batch_sampler": [[0, 1, 2], [10], [4, 3]]},
}
BATCH_SIZES: tuple[int | None, ...] = (None, 1, 2, 4, N, 100)
COLLATES: dict[str, Callable[[Any], Any] | None] = {
    "default": None,
    "list": datasets.as_list,
    "count": datasets.count_or_one,
    "wrapped": datasets.as_single,
}
# How many batches of each epoch are taken; None means all.
EXITS: dict[str, tuple[int | None, ...]] = {
    "one epoch": (None,),
    "two epochs": (None, None),
    "left early, then whole": (1, None),
    "left early twice": (2, 0, 3),
}


@dataclass(frozen=True)
class Case:
    """One combination of settings."""

    dataset: str
    order: str = "sequential"
    batch_size: int | None = 4
    drop_last: bool = False
    collate: str = "default"
    leaving: str = "one epoch"
    workers: int = 2
    prefetch: int = 2
    persistent: bool = False
    in_order: bool = True

    @property
    def is_valid(self) -> bool:
        if self.dataset in ITERABLES and self.order != "sequential":
            return False
        if self.batch_size is None and self.drop_last:
            return False
        own_batches = self.order in ("batches", "list of batches")
        if own_batches and (self.batch_size != 4 or self.drop_last):
            return False  # a batch sampler decides the size; 4 stands for "not given"
        # Out of order, the order depends on the workers' speed, so only whole epochs can be compared.
        return self.in_order or self.leaving in ("one epoch", "two epochs")

    def options(self) -> dict[str, Any]:
        chosen: dict[str, Any] = dict(ORDERS[self.order]())
        if "batch_sampler" not in chosen:
            chosen |= {"batch_size": self.batch_size, "drop_last": self.drop_last}
        return chosen | {"collate_fn": COLLATES[self.collate]}

    def worker_options(self) -> dict[str, Any]:
        return {
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch,
            "persistent_workers": self.persistent,
            "in_order": self.in_order,
        }

    def __str__(self) -> str:
        return "-".join(f"{getattr(self, field.name)}" for field in fields(self))


def epochs(loader: Any, case: Case) -> list[Any]:
    taken = [list(itertools.islice(loader, count)) for count in EXITS[case.leaving]]
    return taken if case.in_order else [sorted(epoch, key=repr) for epoch in taken]


# Inline


@pytest.mark.parametrize(
    ("dataset", "order"),
    [
        *(("pairs", order) for order in ORDERS),
        *((dataset, "shuffled") for dataset in DATASETS if dataset != "pairs"),
        *((dataset, "sequential") for dataset in ITERABLES),
    ],
)
@same_inline
def test_all_settings_inline(side: Side, dataset: str, order: str) -> object:
    leaving = "left early, then whole"
    candidates = [
        *(Case(dataset, order, size, drop, "default", leaving) for size in BATCH_SIZES for drop in (False, True)),
        *(Case(dataset, order, size, False, collate, leaving) for size in (None, 4) for collate in COLLATES),
    ]
    cases = {case for case in candidates if case.is_valid}
    make = {**DATASETS, **ITERABLES}[dataset]
    return {str(case): epochs(side.loader(make(), **case.options()), case) for case in sorted(cases, key=str)}


# With workers: every pair of settings

AXES: dict[str, tuple[Any, ...]] = {
    "dataset": (*DATASETS, *ITERABLES),
    "order": tuple(ORDERS),
    "batch_size": BATCH_SIZES,
    "drop_last": (False, True),
    "collate": tuple(COLLATES),
    "leaving": tuple(EXITS),
    "workers": (1, 2, 3),
    "prefetch": (1, 2, 5),
    "persistent": (False, True),
    "in_order": (True, False),
}


def pairs_of(case: Case) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    settings = [(axis, getattr(case, axis)) for axis in AXES]
    return set(itertools.combinations(settings, 2))


def covering_cases() -> list[Case]:
    """Choose cases greedily until every possible pair of settings has occurred.

    The candidates are drawn at random, from a fixed seed: the selection is the same in every run.
    """
    draw = random.Random(1)
    candidates = [
        case
        for _ in range(6000)
        if (case := Case(**{axis: draw.choice(values) for axis, values in AXES.items()})).is_valid
    ]
    pairs = [pairs_of(case) for case in candidates]
    waiting = set().union(*pairs)
    chosen: list[Case] = []
    while waiting:
        best = max(draw.sample(range(len(candidates)), 300), key=lambda number: len(waiting & pairs[number]))
        if not waiting & pairs[best]:
            pair = next(iter(sorted(waiting, key=repr)))
            best = next(number for number in range(len(candidates)) if pair in pairs[number])
        waiting -= pairs[best]
        chosen.append(candidates[best])
    return chosen


CASES = covering_cases()


@pytest.mark.parametrize(
    "case", [*CASES[:4], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[4:])], ids=str
)
@same_with_workers
def test_pairs_of_settings_with_workers(side: Side, case: Case) -> object:
    make = {**DATASETS, **ITERABLES}[case.dataset]
    return epochs(side.loader(make(), **case.options(), **case.worker_options()), case)


# Other start methods. They do not affect the batches, so torch's side is forked, which is fast.


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@same_in_processes
def test_what_a_worker_sees_under_other_start_methods(side: Side, method: str) -> object:
    """Fields, seeds and draws. With one worker: of several, the first to start may take over work of the others."""
    context = method if side.is_feedline else "fork"
    loader = side.loader(
        datasets.WorkerFieldsAndDraws(4),
        batch_size=2,
        num_workers=1,
        worker_init_fn=datasets.init_seeds_of_random,
        generator=torch.Generator().manual_seed(1),
        multiprocessing_context=context,
    )
    return list(loader)
