"""Forking while other threads run. For whole programs see tests/faults/test_fork_safety.py."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.workers import fork_safety
from feedline.workers.fork_safety import quiesce_threads, reset_in_child


@pytest.fixture
def second_thread() -> Iterator[None]:
    """Another thread, which is idle."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.fixture
def handler() -> Iterator[logging.Handler]:
    """A logging handler, which has a lock."""
    handler = logging.NullHandler()
    handler.lock = threading.RLock()  # a NullHandler does without
    yield handler
    handler.close()


def elsewhere(work: Callable[[], Any]) -> Any:
    """Return what `work` returns on a thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


@contextmanager
def held(*locks: Any) -> Iterator[None]:
    """Have another thread hold the locks."""
    there, ended = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        there.set()
        ended.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    there.wait()
    yield
    ended.set()
    thread.join()


def numpy_lock() -> Any:
    return np.random.mtrand.get_bit_generator().lock


def is_held(lock: Any) -> bool:
    """Return whether another thread would have to wait for a lock."""

    def take() -> bool:
        got: bool = lock.acquire(blocking=False)
        if got:
            lock.release()
        return not got

    held: bool = elsewhere(take)
    return held


# -- locks ---


@pytest.mark.usefixtures("second_thread")
def test_locks_that_workers_may_need_are_held_by_the_forking_thread(handler: logging.Handler) -> None:
    locks = (numpy_lock(), handler.lock)
    with quiesce_threads():
        assert [is_held(lock) for lock in locks] == [True, True]
    assert [is_held(lock) for lock in locks] == [False, False]


def test_waiting_for_a_lock_that_is_never_released_times_out(
    handler: logging.Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_safety, "_LOCK_S", 0.01)
    with held(handler.lock):
        with quiesce_threads():
            assert is_held(numpy_lock()), "the other locks are held"
        assert is_held(handler.lock), "the other thread still holds it"


class Guarded:
    """A dataset with locks of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.again = threading.RLock()
        self.free = threading.Lock()
        self.name = "guarded"


def test_a_child_frees_locks_of_the_dataset_that_other_threads_held() -> None:
    dataset = Guarded()
    with held(dataset.lock, dataset.again):
        assert [is_held(dataset.lock), is_held(dataset.again)] == [True, True]
        reset_in_child(dataset)
        assert not any(is_held(lock) for lock in (dataset.lock, dataset.again, dataset.free))


# -- imports ---


@pytest.mark.usefixtures("second_thread")
def test_a_fork_does_not_wait_for_imports_of_its_own_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that is iterated at the top of a module."""

    def sleep(_: float) -> None:
        raise AssertionError("waits for itself")

    entered: list[bool] = []

    def enter() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(fork_safety, "time", types.SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0))
            with quiesce_threads():
                entered.append(True)

    monkeypatch.setitem(sys.modules, "calm_events", types.SimpleNamespace(enter=enter))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "calm_forks.py").write_text("import calm_events\ncalm_events.enter()\n")
    importlib.import_module("calm_forks")
    assert entered == [True]
    sys.modules.pop("calm_forks")


# -- running threads ---


@pytest.mark.usefixtures("second_thread")
def test_a_fork_waits_until_the_other_threads_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([True, False, True, False, False, True])
    asked: list[bool] = []

    def runs(_: bytes) -> bool:
        asked.append(next(states))
        return asked[-1]

    monkeypatch.setattr(fork_safety, "_runs", runs)
    monkeypatch.setattr(os, "listdir", lambda _: ["1"])
    with quiesce_threads():
        fork_safety._before_fork()
        fork_safety._after_fork()
    assert asked == [True, False, True, False, False], "twice in a row"
    fork_safety._before_fork()
    assert len(asked) == 5, "forks by other code do not wait"


# -- OpenCV ---


class OpenCV:
    """A stand-in for the cv2 module."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.set: list[int] = []

    def getNumThreads(self) -> int:  # noqa: N802  OpenCV's name
        return self.count

    def setNumThreads(self, count: int) -> None:  # noqa: N802  OpenCV's name
        self.count = count
        self.set.append(count)


@pytest.mark.parametrize(("count", "inside"), [(4, 1), (1, 1), (0, 0)])
def test_opencv_has_no_threads_while_a_worker_is_forked(
    count: int, inside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opencv = OpenCV(count)
    monkeypatch.setitem(sys.modules, "cv2", opencv)
    with quiesce_threads():
        assert opencv.count == inside
    assert opencv.count == count
    assert opencv.set == ([1, 4] if count == 4 else []), "nothing is set where there are no threads"
