"""Iterators and workers: when they start, how they end, and that nothing is left behind."""

import gc
import itertools
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

import feedline
from feedline.types import EngineName
from tests.parity import datasets
from tests.parity.children import in_a_child
from tests.parity.sides import Parity, Side, same

pytestmark = pytest.mark.workers(1)


def as_lists(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


@same
def test_an_exhausted_iterator_stays_exhausted(side: Side) -> object:
    iterator = iter(side.loader(datasets.Squares(4), batch_size=2))
    list(iterator)
    ends = 0
    for _ in range(3):
        try:
            next(iterator)
        except StopIteration:
            ends += 1
    return ends


# Several at once


@same
def test_two_iterators_over_one_loader(side: Side) -> object:
    loader = side.loader(datasets.Squares(6), batch_size=2, shuffle=True)
    one, two = iter(loader), iter(loader)
    return [next(one), next(two), next(two), next(one), list(one), list(two)]


def test_a_loader_inside_the_dataset_of_a_loader(parity: Parity) -> None:
    def code(side: Side) -> object:
        return list(side.loader(datasets.NestedLoader(side.kind), batch_size=2))

    parity.same(code, generators=parity.has_own_generators)


# Threads


# Processes


@same
def test_a_loader_in_a_child_process(side: Side) -> object:
    return in_a_child(lambda: as_lists(side.loader(datasets.Squares(6), batch_size=2, shuffle=True)))


def test_a_daemon_process_with_workers_delivers_or_raises(worker_parity: Parity) -> None:
    """Python forbids daemon processes to have children, so torch's loader fails; threads are not children."""

    def code(side: Side) -> object:
        return in_a_child(lambda: as_lists(side.loader(datasets.Squares(4), batch_size=2)), daemon=True)

    expected, actual = worker_parity.both(code)
    assert "daemonic processes are not allowed to have children" in str(expected.value)
    assert actual.failure is None
    delivered = [[[0.0, 0.0], [1.0, 1.0]], [[2.0, 4.0], [3.0, 9.0]]]
    assert "daemonic processes" in str(actual.value) or str(delivered[0][1][0]) in str(actual.value)


@same
def test_forking_while_an_iterator_is_open(side: Side) -> object:
    """A child that inherits a running iterator and exits must not disturb it."""
    iterator = iter(side.loader(datasets.Squares(12), batch_size=2))
    first = next(iterator)
    answer = in_a_child(lambda: "child was here")
    second = next(iterator)
    return first, answer, second, list(iterator)


def test_forking_while_many_loaders_are_alive() -> None:
    """Address space reserved by loaders must not count towards the system's limit for forking."""
    kept: list[Any] = []
    for _ in range(4):
        loader = feedline.DataLoader(datasets.Squares(4), batch_size=2, num_workers=1, persistent_workers=True)
        kept.append((loader, list(loader)))
    assert in_a_child(lambda: "forked") == "forked"


# Nothing is left behind; a fixture around every test checks that


@pytest.mark.parametrize(
    ("engine_name", "persistent", "taken"), [("thread", True, None), ("process", False, 0), ("process", True, 1)]
)
def test_dropping_the_loader_ends_its_workers(engine_name: EngineName, persistent: bool, taken: int | None) -> None:
    before = set(children())
    loader = feedline.DataLoader(
        datasets.Squares(20), batch_size=2, num_workers=2, engine=engine_name, persistent_workers=persistent
    )
    iterator = iter(loader)
    list(itertools.islice(iterator, taken))
    del iterator, loader
    gc.collect()
    assert set(children()) <= before
    assert not [thread.name for thread in threading.enumerate() if "feedline" in thread.name.lower()]


def test_a_loader_in_a_reference_cycle_is_collected() -> None:
    before = set(children())
    loader: Any = feedline.DataLoader(datasets.Squares(20), batch_size=2, num_workers=2, persistent_workers=True)
    loader.myself = loader
    next(iter(loader))
    del loader
    gc.collect()
    assert set(children()) <= before


def children() -> list[int]:
    """Return the direct children of this process, as multiprocessing and the system list them."""
    listed = f"/proc/self/task/{threading.get_native_id()}/children"
    pids = [process.pid for process in multiprocessing.active_children()]
    if os.path.exists(listed):
        with open(listed) as file:
            pids += [int(pid) for pid in file.read().split()]
    return [pid for pid in pids if pid is not None]


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_a_program_may_exit_in_the_middle_of_an_epoch(persistent: bool) -> None:
    finished = run_script(f"""
        from feedline import DataLoader
        from tests.parity.datasets import Squares
        loader = DataLoader(Squares(40), batch_size=2, num_workers=2, persistent_workers={persistent})
        iterator = iter(loader)
        next(iterator)
    """)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


@pytest.mark.slow
def test_forked_workers_after_the_parent_used_torchs_threads() -> None:
    """A convolution starts torch's intra-op threads, which a fork does not copy: torch's own loader hangs here."""
    finished = run_script("""
        import torch
        from feedline import DataLoader
        from tests.parity.datasets import Convolving

        torch.set_num_threads(2)
        image = torch.rand(8, 16, 64, 64)
        kernel = torch.rand(16, 16, 3, 3)
        torch.nn.functional.conv2d(image, kernel)
        loader = DataLoader(Convolving(6), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=30)
        print(len(list(loader)))
    """)
    assert (finished.returncode, finished.stdout.strip()) == (0, "3"), finished.stderr
