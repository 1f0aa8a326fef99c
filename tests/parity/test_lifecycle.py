"""Iterators and workers: when they start, how they end, and that nothing is left behind."""

import gc
import itertools
import multiprocessing
import os
import pickle
import queue
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import feedline
from feedline.types import EngineName
from tests.parity import datasets
from tests.parity.children import in_a_child
from tests.parity.sides import Parity, Side

pytestmark = pytest.mark.sample(7)


def as_lists(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


# Leaving early and coming back


@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_leaving_early_and_iterating_again(parity: Parity, taken: int) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(10), batch_size=2, shuffle=True)
        first = list(itertools.islice(loader, taken))
        return first, list(loader), list(itertools.islice(loader, taken))

    parity.same(code)


@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_leaving_early_and_iterating_again_with_persistent_workers(worker_parity: Parity, taken: int) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(10), batch_size=2, shuffle=True, persistent_workers=True)
        first = list(itertools.islice(loader, taken))
        return first, list(loader), list(itertools.islice(loader, taken)), list(loader)

    worker_parity.same(code)


@pytest.mark.parametrize("taken", [1, 3])
def test_leaving_an_iterable_dataset_early_and_iterating_again(parity: Parity, taken: int) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Sharded(17), batch_size=2)
        first = list(itertools.islice(loader, taken))
        return first, list(loader)

    parity.same(code)


@pytest.mark.parametrize("taken", [1, 3])
def test_leaving_an_iterable_dataset_early_with_persistent_workers(worker_parity: Parity, taken: int) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Sharded(17), batch_size=2, persistent_workers=True)
        first = list(itertools.islice(loader, taken))
        return first, list(loader), list(loader)

    worker_parity.same(code)


@pytest.mark.slow
def test_many_epochs_left_early(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(10), batch_size=2, shuffle=True)
        return [next(iter(loader)) for _ in range(6)]

    parity.same(code)


@pytest.mark.slow
def test_an_exception_in_the_loop_leaves_the_loader_usable(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(10), batch_size=2)
        seen = []
        for attempt in range(2):
            try:
                for number, batch in enumerate(loader):
                    if number == attempt:
                        raise RuntimeError("out of memory, say")
                    seen.append(batch)
            except RuntimeError:
                seen.append("failed")
        return seen, list(loader)

    parity.same(code)


def test_an_exhausted_iterator_stays_exhausted(parity: Parity) -> None:
    def code(side: Side) -> object:
        iterator = iter(side.loader(datasets.Squares(4), batch_size=2))
        list(iterator)
        ends = 0
        for _ in range(3):
            try:
                next(iterator)
            except StopIteration:
                ends += 1
        return ends

    parity.same(code)


def test_an_iterator_is_its_own_iterator(parity: Parity) -> None:
    def code(side: Side) -> object:
        iterator = iter(side.loader(datasets.Squares(6), batch_size=2))
        first = next(iterator)
        return iter(iterator) is iterator, first, list(iterator)

    parity.same(code)


def test_an_unused_iterator_does_no_harm(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(4), batch_size=2, shuffle=True)
        iter(loader)
        return list(loader)

    parity.same(code)


def test_an_iterator_cannot_be_pickled(parity: Parity) -> None:
    def code(side: Side) -> object:
        return pickle.dumps(iter(side.loader(datasets.Squares(4), batch_size=2)))

    expected, actual = parity.both(code)
    assert expected.failure is not None
    assert actual.failure is not None


# Several at once


def test_two_iterators_over_one_loader(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(6), batch_size=2, shuffle=True)
        one, two = iter(loader), iter(loader)
        return [next(one), next(two), next(two), next(one), list(one), list(two)]

    parity.same(code)


def test_zipping_a_loader_with_itself(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(6), batch_size=2)
        return list(zip(loader, loader, strict=True))

    parity.same(code)


def test_a_loop_over_a_loader_inside_a_loop_over_the_same_loader(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(4), batch_size=2)
        return [(outer, inner) for outer in loader for inner in loader]

    parity.same(code)


@pytest.mark.slow
def test_training_and_validation_loaders_in_turn(parity: Parity) -> None:
    def code(side: Side) -> object:
        train = side.loader(datasets.Squares(6), batch_size=2, shuffle=True)
        validate = side.loader(datasets.Pairs(4), batch_size=2)
        seen: list[Any] = []
        for _ in range(2):
            for batch in train:
                seen.append(batch)
            seen.extend(validate)
        return seen

    parity.same(code)


@pytest.mark.slow
def test_several_persistent_loaders_at_once(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        loaders = [
            side.loader(datasets.Squares(4 + size), batch_size=2, persistent_workers=True, num_workers=1)
            for size in range(4)
        ]
        return [[list(loader) for loader in loaders] for _ in range(2)]

    worker_parity.same(code)


def test_a_loader_inside_the_dataset_of_a_loader(parity: Parity) -> None:
    def code(side: Side) -> object:
        return list(side.loader(datasets.NestedLoader(side.kind), batch_size=2))

    parity.same(code, generators=parity.has_own_generators)


def test_a_loader_inside_a_collate_function(parity: Parity) -> None:
    def code(side: Side) -> object:
        def collate(samples: list[Any]) -> Any:
            return list(side.kind(TensorDataset(torch.stack(samples)), batch_size=1, num_workers=0))

        return list(side.loader(datasets.Squares(4), batch_size=2, collate_fn=collate))

    parity.same(code, generators=parity.has_own_generators)


def test_a_loader_as_the_dataset_of_a_loader(parity: Parity) -> None:
    class Batches(torch.utils.data.IterableDataset[Any]):
        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __iter__(self) -> Any:
            return iter(self.loader)

    def code(side: Side) -> object:
        inner = side.kind(datasets.Squares(5), batch_size=2, num_workers=0)
        return list(side.loader(Batches(inner), batch_size=None))

    parity.same(code, generators=parity.has_own_generators)


# Persistent workers


def test_persistent_workers_over_epochs(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(9), batch_size=2, shuffle=True, persistent_workers=True)
        return [list(loader) for _ in range(4)]

    worker_parity.same(code)


def test_starting_a_new_epoch_ends_the_old_one_with_persistent_workers(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(8), batch_size=2, persistent_workers=True)
        next(iter(loader))
        return list(iter(loader))

    worker_parity.same(code)


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_prefetching_does_not_affect_the_batches(worker_parity: Parity, prefetch: int) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(15), batch_size=2, shuffle=True, prefetch_factor=prefetch)
        return list(loader), list(loader)

    worker_parity.same(code)


# Threads


def test_a_loader_in_a_thread(parity: Parity) -> None:
    def code(side: Side) -> object:
        results: list[Any] = []
        thread = threading.Thread(
            target=lambda: results.extend(side.loader(datasets.Squares(6), batch_size=2, generator=torch.Generator()))
        )
        thread.start()
        thread.join()
        return results

    parity.same(code)


def test_loaders_in_several_threads(parity: Parity) -> None:
    def code(side: Side) -> object:
        results: dict[int, Any] = {}

        def run(number: int) -> None:
            loader = side.loader(datasets.Squares(4 + number), batch_size=2, generator=torch.Generator())
            results[number] = list(loader)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [results[number] for number in sorted(results)]

    parity.same(code)


def test_an_iterator_made_in_one_thread_and_read_in_another(parity: Parity) -> None:
    def code(side: Side) -> object:
        iterator = iter(side.loader(datasets.Squares(6), batch_size=2))
        results = [next(iterator)]
        thread = threading.Thread(target=lambda: results.extend(iterator))
        thread.start()
        thread.join()
        return results

    parity.same(code)


def test_a_prefetching_thread_around_a_loader(parity: Parity) -> None:
    """Users write this to overlap copies: a thread that reads ahead into a queue."""

    def code(side: Side) -> object:
        ahead: queue.Queue[Any] = queue.Queue(maxsize=2)

        def read() -> None:
            for batch in side.loader(datasets.Squares(8), batch_size=2, generator=torch.Generator()):
                ahead.put(batch)
            ahead.put(None)

        thread = threading.Thread(target=read)
        thread.start()
        results = list(iter(ahead.get, None))
        thread.join()
        return results

    parity.same(code)


# Processes


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_in_a_child_process(parity: Parity, shuffle: bool) -> None:
    def code(side: Side) -> object:
        return in_a_child(lambda: as_lists(side.loader(datasets.Squares(6), batch_size=2, shuffle=shuffle)))

    parity.same(code)


def test_a_loader_made_here_and_iterated_in_a_child_process(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(6), batch_size=2)
        return in_a_child(lambda: as_lists(loader)), as_lists(loader)

    parity.same(code)


def test_a_loader_used_here_and_then_in_a_child_process(parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(6), batch_size=2)
        first = as_lists(loader)
        return first, in_a_child(lambda: as_lists(loader)), as_lists(loader)

    parity.same(code)


def test_an_inline_loader_in_a_daemon_process(inline_parity: Parity) -> None:
    def code(side: Side) -> object:
        return in_a_child(lambda: as_lists(side.loader(datasets.Squares(6), batch_size=2)), daemon=True)

    inline_parity.same(code)


def test_a_daemon_process_with_workers_delivers_or_raises(worker_parity: Parity) -> None:
    """Python forbids daemon processes to have children, so torch's loader fails; threads are not children."""

    def code(side: Side) -> object:
        return in_a_child(lambda: as_lists(side.loader(datasets.Squares(4), batch_size=2)), daemon=True)

    expected, actual = worker_parity.both(code)
    assert "daemonic processes are not allowed to have children" in str(expected.value)
    assert actual.failure is None
    delivered = [[[0.0, 0.0], [1.0, 1.0]], [[2.0, 4.0], [3.0, 9.0]]]
    assert "daemonic processes" in str(actual.value) or str(delivered[0][1][0]) in str(actual.value)


def test_forking_while_an_iterator_is_open(parity: Parity) -> None:
    """A child that inherits a running iterator and exits must not disturb it."""

    def code(side: Side) -> object:
        iterator = iter(side.loader(datasets.Squares(12), batch_size=2))
        first = next(iterator)
        answer = in_a_child(lambda: "child was here")
        second = next(iterator)
        return first, answer, second, list(iterator)

    parity.same(code)


def test_forking_while_persistent_workers_wait(worker_parity: Parity) -> None:
    def code(side: Side) -> object:
        loader = side.loader(datasets.Squares(6), batch_size=2, persistent_workers=True)
        first = list(loader)
        answer = in_a_child(lambda: "child was here")
        return first, answer, list(loader)

    worker_parity.same(code)


@pytest.mark.parametrize("engine_name", ["inline", "thread", "process"])
def test_forking_while_many_loaders_are_alive(engine_name: EngineName) -> None:
    """Address space reserved by loaders must not count towards the system's limit for forking."""
    workers = 0 if engine_name == "inline" else 1
    kept: list[Any] = []
    for _ in range(8):
        loader = feedline.DataLoader(
            datasets.Squares(4),
            batch_size=2,
            num_workers=workers,
            engine=engine_name,
            persistent_workers=workers > 0,
        )
        kept.append((loader, list(loader)))
    assert in_a_child(lambda: "forked") == "forked"


# Nothing is left behind; a fixture around every test checks that


@pytest.mark.parametrize("engine_name", ["thread", "process"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("taken", [0, 1, None])
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


@pytest.mark.parametrize("engine_name", ["thread", "process"])
def test_a_loader_in_a_reference_cycle_is_collected(engine_name: EngineName) -> None:
    before = set(children())
    loader: Any = feedline.DataLoader(
        datasets.Squares(20), batch_size=2, num_workers=2, engine=engine_name, persistent_workers=True
    )
    loader.myself = loader
    next(iter(loader))
    del loader
    gc.collect()
    assert set(children()) <= before


@pytest.mark.parametrize("engine_name", ["inline", "thread", "process"])
def test_closing_ends_the_workers_and_keeps_the_batches(engine_name: EngineName) -> None:
    before = set(children())
    workers = 0 if engine_name == "inline" else 2
    loader = feedline.DataLoader(
        datasets.Squares(20), batch_size=2, num_workers=workers, engine=engine_name, persistent_workers=workers > 0
    )
    batches = list(loader)
    loader.close()
    loader.close()
    assert set(children()) <= before
    assert torch.equal(torch.cat(batches), torch.stack([datasets.Squares(20)[i] for i in range(20)]))


def test_the_workers_of_a_finished_epoch_have_ended(process_parity: Parity) -> None:
    def code(side: Side) -> object:
        before = len(children())
        loader = side.loader(datasets.Squares(6), batch_size=2)
        iterator = iter(loader)
        list(iterator)
        return len(children()) - before

    process_parity.same(code)


def test_open_files_do_not_grow_over_epochs(parity: Parity) -> None:
    loader = parity.feedline.loader(datasets.Squares(6), batch_size=2)
    list(loader)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        list(loader)
    assert len(os.listdir("/proc/self/fd")) <= before


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
