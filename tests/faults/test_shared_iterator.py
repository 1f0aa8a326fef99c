"""Several threads share one iterator, and one of them may close it: each batch comes once, and no thread hangs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from feedline.errors import ReentrantCall
from tests.contracts.gate import Gate
from tests.faults.loaders import Numbers, make, on, plain

SOON_S = 100.0
"""Timeout for anything that has to happen; far more than it takes."""


class Counted(IterableDataset[int]):
    """A stream of numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(200))


class Held(Numbers):
    """Samples from 8 on wait at a gate."""

    def __init__(self, gate: Path) -> None:
        super().__init__(64)
        self.path = gate

    def __getitem__(self, index: int) -> Any:
        if index >= 8 and not (self.path / "free").exists():
            Gate.at(self.path).pass_through()
        return super().__getitem__(index)

    def let_go(self, gate: Gate) -> None:
        """Let all threads through from now on."""
        (self.path / "free").touch()
        gate.open(1000)

    def has_no_workers(self) -> bool:
        """Wait until no worker thread is left; some may have been at the gate."""
        workers = [thread for thread in threading.enumerate() if thread.name.startswith("feedline-worker")]
        return all(ended(thread) for thread in workers)


def in_thread(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run `act` on another thread; its result or exception is put into the list."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(act())
        except BaseException as exc:
            outcome.append(exc)

    thread = threading.Thread(target=run, name="feedline-test", daemon=True)
    thread.start()
    return thread, outcome


def ended(thread: threading.Thread) -> bool:
    thread.join(SOON_S)
    return not thread.is_alive()


# -- several threads ---


@pytest.mark.parametrize(
    ("loader_kind", "engine", "kind"),
    [
        ("Loader", "inline", "map"),
        ("DataLoader", "thread", "stream"),
        ("Loader", "process", "map"),
        pytest.param("DataLoader", "process", "stream", marks=pytest.mark.slow),
    ],
)
def test_each_batch_goes_to_one_of_several_threads(loader_kind: str, engine: str, kind: str) -> None:
    workers = 1 if kind == "stream" else 2
    options: dict[str, Any] = {"shard": False} if kind == "stream" else {}
    dataset = Counted() if kind == "stream" else Numbers(200)
    batches = iter(make(loader_kind, dataset, 2, **on(engine, workers), **options))
    threads = [in_thread(lambda: [sample for batch in batches for sample in plain(batch)]) for _ in range(3)]
    assert all(ended(thread) for thread, _ in threads)
    taken = [sample for _, (outcome,) in threads for sample in outcome]
    assert sorted(taken) == list(range(200))


def test_another_thread_can_start_the_next_epoch_of_persistent_workers() -> None:
    """As with torch, both have the same iterator, and the rest of the old epoch is gone."""
    loader = make("Loader", Numbers(40), 2, persistent=True, **on("thread"))
    batches = iter(loader)
    next(batches)
    thread, outcome = in_thread(lambda: iter(loader))
    assert ended(thread)
    assert outcome == [batches]
    assert [sample for batch in batches for sample in plain(batch)] == list(range(40))
    loader.close()


# -- close ---


@contextmanager
def waiting(loader: Any, gate: Gate) -> Iterator[tuple[Any, threading.Thread, list[Any]]]:
    """Let another thread wait for a batch that does not come."""
    batches = iter(loader)
    next(batches), next(batches)
    thread, outcome = in_thread(lambda: next(batches))
    gate.wait_until_reached(1)
    try:
        yield batches, thread, outcome
    finally:
        loader.dataset.let_go(gate)


@pytest.mark.parametrize(
    ("loader_kind", "engine", "who"),
    [
        ("Loader", "process", "iterator"),
        ("DataLoader", "thread", "loader"),
        pytest.param("DataLoader", "process", "persistent loader", marks=pytest.mark.slow),
        pytest.param("Loader", "thread", "persistent loader", marks=pytest.mark.slow),
    ],
)
def test_a_thread_waiting_for_a_batch_is_released_when_another_closes(
    loader_kind: str, engine: str, who: str, tmp_path: Path
) -> None:
    with Gate(tmp_path / "gate") as gate:
        dataset = Held(tmp_path / "gate")
        loader = make(loader_kind, dataset, persistent=who.startswith("persistent"), **on(engine))
        with waiting(loader, gate) as (batches, thread, outcome):
            (batches if who == "iterator" else loader).close()
            assert ended(thread)
        assert isinstance(outcome[0], StopIteration)
        with pytest.raises(StopIteration):
            next(batches)
        loader.load_state_dict(loader.state_dict())
        assert [sample for batch in loader for sample in plain(batch)] == list(range(8, 64)), (
            "the loader resumes where it was"
        )
        loader.close()
        assert dataset.has_no_workers()


def test_a_signal_handler_may_close_the_loader_while_next_waits(tmp_path: Path) -> None:
    with Gate(tmp_path / "gate") as gate:
        loader = make("Loader", Held(tmp_path / "gate"), **on("process"))
        batches = iter(loader)
        next(batches), next(batches)
        before = signal.signal(signal.SIGUSR1, lambda number, frame: loader.close())
        main = threading.main_thread().ident
        assert main is not None

        def send() -> None:
            gate.wait_until_reached(1)
            signal.pthread_kill(main, signal.SIGUSR1)

        thread, _ = in_thread(send)
        try:
            with pytest.raises(StopIteration):
                next(batches)
        finally:
            signal.signal(signal.SIGUSR1, before)
            loader.dataset.let_go(gate)
        assert ended(thread)
        assert batches.closed
        assert loader.dataset.has_no_workers()


def test_close_does_not_wait_for_a_thread_that_is_stuck_in_user_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is in a sampler that blocks, and frees everything when it returns."""
    monkeypatch.setattr("feedline.delivery.driver.caller_lock._PATIENCE_S", 0.05)
    blocked, free = threading.Event(), threading.Event()

    def sampler() -> Iterator[int]:
        yield from range(8)
        blocked.set()
        free.wait(SOON_S)
        yield from range(8, 16)

    loader = make("Loader", Numbers(16), 1, sampler=Sampling(sampler), prefetch=1, **on("process"))
    batches = iter(loader)
    thread, outcome = in_thread(lambda: [plain(batch) for batch in batches])
    assert blocked.wait(SOON_S)
    loader.close()
    assert thread.is_alive()
    free.set()
    assert ended(thread)
    assert batches.closed
    assert outcome[0] == [[number] for number in range(len(outcome[0]))]


class Sampling:
    """A sampler made of a function."""

    def __init__(self, function: Callable[[], Iterator[int]]) -> None:
        self._function = function

    def __iter__(self) -> Iterator[int]:
        return self._function()

    def __len__(self) -> int:
        return 16


# -- next() inside next() ---


class Curious(Numbers):
    """Calls next() on the iterator of its own loader."""

    batches: Any = None

    def __getitem__(self, index: int) -> Any:
        return next(self.batches) if index == 3 else index


def test_next_inside_a_dataset_raises() -> None:
    dataset = Curious(8)
    for kind in ("Loader", "DataLoader"):
        dataset.batches = iter(make(kind, dataset, 2))
        assert plain(next(dataset.batches)) == [0, 1]
        with pytest.raises(ReentrantCall, match=r"same thread is inside its next\(\).*iter\(loader\)"):
            next(dataset.batches)
        assert plain(next(dataset.batches)) == [4, 5], "the sample failed like any other that raises"
