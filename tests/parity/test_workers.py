"""What code sees inside a worker, and that the caller's process is not affected."""

import gc
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import get_worker_info

from tests.holding import Hold
from tests.parity import datasets
from tests.parity.sides import Parity, Side, same_in_processes, same_with_workers


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# get_worker_info()


SEEN: dict[str, Callable[[], dict[str, Any]]] = {
    "its info": lambda: {"dataset": datasets.WorkerFields(9)},
    "its info, in a stream": lambda: {"dataset": datasets.WorkerFieldsIterable()},
}

SEEN_IN_PROCESSES: dict[str, Callable[[], dict[str, Any]]] = {
    "its generators": lambda: {"dataset": datasets.Draws(9), "batch_size": 2},
    "its generators, in a stream": lambda: {"dataset": datasets.DrawsIterable(), "batch_size": 2},
    "the seeds of the init function": lambda: {"dataset": datasets.Draws(8), "worker_init_fn": datasets.init_seeds},
    "its copy of the dataset": lambda: {"dataset": datasets.Counter(8), "worker_init_fn": datasets.init_label},
}
"""Threads share the generators and the dataset."""


def two_epochs(make: Callable[[], dict[str, Any]], workers: int, persistent: bool) -> Callable[[Side], object]:
    def code(side: Side) -> object:
        options = {"batch_size": None, "num_workers": workers, "persistent_workers": persistent, **make()}
        loader = side.loader(**options, generator=seeded(2**33))
        return list(loader), list(loader)

    return code


@pytest.mark.parametrize(
    ("name", "workers", "persistent"), [("its info", 3, True), ("its info, in a stream", 1, False)]
)
def test_what_a_worker_sees(worker_parity: Parity, name: str, workers: int, persistent: bool) -> None:
    worker_parity.same(two_epochs(SEEN[name], workers, persistent))


@pytest.mark.parametrize(
    ("name", "workers", "persistent"),
    [
        ("its generators", 3, True),
        ("its generators, in a stream", 2, False),
        ("the seeds of the init function", 3, False),
        ("its copy of the dataset", 3, True),
    ],
)
def test_what_a_process_sees(process_parity: Parity, name: str, workers: int, persistent: bool) -> None:
    process_parity.same(two_epochs(SEEN_IN_PROCESSES[name], workers, persistent))


# Which worker makes which batch


def test_workers_get_the_same_batches_as_in_torch_when_one_is_late(
    process_parity: Parity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 0 is held at its second sample while the other one is idle. torch's loader ignores that."""
    hold = Hold(tmp_path, monkeypatch)

    def code(side: Side) -> object:
        gate = hold.gate if side.is_feedline else tmp_path / "none"
        loader = side.loader(datasets.HeldCounter(gate, 12), batch_size=1, persistent_workers=True)
        return list(loader), list(loader)

    process_parity.same(code)


@pytest.mark.parametrize("prefetch", [1, 2])
@same_with_workers
def test_out_of_order_a_worker_that_answers_gets_the_next_batch(side: Side, prefetch: int) -> object:
    """Worker 0 is held at its first batch; the other one makes everything that was not yet given to worker 0."""
    release = multiprocessing.get_context("fork").Event()
    loader = side.loader(datasets.HeldBack(release, 12), batch_size=1, in_order=False, prefetch_factor=prefetch)
    seen = []
    for batch in loader:
        seen.append(batch[0].tolist())
        if len(seen) == 12 - prefetch:
            release.set()  # the remaining batches wait behind the first
    return seen


# Seeds


# worker_init_fn


def test_an_exception_of_the_init_function_reaches_the_user(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        return list(side.loader(datasets.Squares(4), batch_size=2, worker_init_fn=datasets.init_fails))

    failure = worker_parity.same_failure(code, "cannot start")
    assert "init_fails" in failure.report


def test_the_init_function_is_not_called_inline(inline_parity: Parity) -> None:
    inline_parity.same(lambda side: list(side.loader(datasets.Squares(4), worker_init_fn=datasets.init_fails)))


# Copies of the dataset


@same_in_processes
def test_persistent_workers_keep_their_copy(side: Side) -> object:
    dataset = datasets.Counter(4)
    loader = side.loader(dataset, batch_size=2, persistent_workers=True)
    first = list(loader)
    dataset.label = "changed"  # too late: workers already have their copy
    return first, list(loader), list(loader)


# What a worker inherits


# The workers themselves, under torch's private names


class Pids(datasets.Squares):
    """Samples say which worker made them, in which process."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return (-1 if info is None else info.id), os.getpid()


def facts(workers: list[Any]) -> list[object]:
    """Return what tests and hacks read from workers."""
    return [
        (worker.is_alive(), worker.daemon, worker.exitcode is None, worker.pid != os.getpid()) for worker in workers
    ]


@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
@same_in_processes
def test_an_iterator_exposes_its_workers(side: Side, context: str) -> object:
    batches = iter(side.loader(Pids(8), batch_size=1, multiprocessing_context=context))
    made_by = [(int(number), int(pid)) for number, pid in (next(batches), next(batches))]
    workers = list(batches._workers)
    running = facts(workers)
    made_by += [(int(number), int(pid)) for number, pid in batches]
    for worker in batches._workers:
        worker.join(60)
    same = [worker.pid for worker in batches._workers] == [worker.pid for worker in workers]
    in_place = all(workers[number].pid == pid for number, pid in made_by)
    return running, facts(workers), same, in_place, len(set(made_by))


@pytest.mark.parametrize(("end", "persistent"), [("dropped", True), ("shut down", False)])
@same_in_processes
def test_workers_end_with_their_iterator(side: Side, end: str, persistent: bool) -> object:
    loader = side.loader(Pids(40), batch_size=1, persistent_workers=persistent)
    batches = iter(loader)
    next(batches)
    workers = list(batches._workers)
    if end == "dropped":
        del batches, loader
        gc.collect()
    else:
        batches._shutdown_workers()
        batches._shutdown_workers()
    for worker in workers:
        worker.join(60)
        worker.terminate()
        worker.kill()
    return facts(workers)
