"""States saved at the start of an epoch, for persistent workers that keep the state of the previous epoch."""

import copy
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.utils.data as torch_data

from feedline import DataLoader
from feedline.errors import WorkerDied, WorkerError, WorkerTimeout
from tests.order import datasets
from tests.order.facts import values

pytestmark = pytest.mark.sample(7)


def streaming(**options: Any) -> Any:
    return DataLoader(datasets.StatefulStream(12), batch_size=2, collate_fn=datasets.first_fields, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "every", "taken"), [(0, 1, None), (2, 1, None), (2, 3, None), (2, 3, 1), (2, 10, 1)]
)
def test_the_state_of_a_generator_that_has_not_started_has_no_place(
    workers: int, every: int, taken: int | None
) -> None:
    """The state of its dataset belongs to the previous epoch, which ended or was abandoned."""
    options = {"num_workers": workers, "persistent_workers": workers > 0, "snapshot_every_n_steps": every}
    loader = streaming(**options)
    values(itertools.islice(iter(loader), taken))
    iterator = iter(loader)
    states = [copy.deepcopy(loader.state_dict())]
    came = []
    for batch in iterator:
        came.append(batch)
        states.append(copy.deepcopy(loader.state_dict()))
    for place, state in enumerate(states[:4]):
        other = streaming(**options)
        other.load_state_dict(state)
        assert list(other) == came[place:], place
        other.close()
    loader.close()


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_epoch_after_a_generator_ended_is_whole(workers: int) -> None:
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = streaming(**options)
    whole = list(loader)
    resumed = streaming(**options)
    resumed.load_state_dict(copy.deepcopy(loader.state_dict()))
    iterator = iter(resumed)
    again = streaming(**options)
    again.load_state_dict(copy.deepcopy(resumed.state_dict()))
    assert list(iterator) == whole
    assert list(again) == whole, "a state of a resumed loader"
    for one in (loader, resumed, again):
        one.close()


# -- workers that do not answer ---


def never(_: Any) -> None:
    threading.Event().wait()


def die(_: Any) -> None:
    os._exit(3)


class Counting:
    """Counts its samples over all epochs. One worker calls `happens` at its first sample of the second epoch."""

    count = 0
    passes = 0

    def __init__(self, happens: Callable[[Any], None] | None, worker: int) -> None:
        self.happens = happens
        self.worker = worker

    def made(self, number: int) -> int:
        info = torch_data.get_worker_info()
        assert info is not None
        self.count += 1
        if self.happens is not None and info.id == self.worker and (self.passes == 2 or self.count == 4):
            self.happens(self)
        return 100 * number + self.count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class CountingMap(Counting, torch_data.Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index >= 6:
            raise IndexError(index)
        return self.made(index)


class CountingStream(Counting, torch_data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return map(self.made, range(3))


def counting(kind: Any, happens: Callable[[Any], None] | None = None, worker: int = 1, **options: Any) -> Any:
    return DataLoader(
        kind(happens, worker), batch_size=1, num_workers=2, persistent_workers=True, restarts=0, **options
    )


def second_epoch(kind: Any, state: Any = None) -> list[Any]:
    loader = counting(kind)
    if state is None:
        list(loader)
    else:
        loader.load_state_dict(state)
    came = values(loader)
    loader.close()
    return came


@pytest.mark.parametrize("kind", [CountingMap, CountingStream])
@pytest.mark.parametrize(("happens", "error"), [(die, WorkerDied), (never, WorkerTimeout)])
def test_the_last_known_state_is_saved_for_a_worker_that_does_not_answer(kind: Any, happens: Any, error: Any) -> None:
    loader = counting(kind, happens)
    list(loader)
    loader.timeout = 0.5  # not earlier, since the first epoch is slow on a busy machine
    iterator = iter(loader)
    state = copy.deepcopy(loader.state_dict())
    with pytest.raises(error):
        list(iterator)
    loader.close()
    assert second_epoch(kind, state) == second_epoch(kind)


def test_waiting_for_a_state_ends_when_another_thread_closes_the_loader() -> None:
    loader = counting(CountingStream, never, prefetch_factor=1)
    values(itertools.islice(iter(loader), 2))
    iterator = iter(loader)
    closer = threading.Timer(0.2, loader.close)
    closer.start()
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"another thread closed the loader.*before close\(\)"):
            loader.state_dict()
    closer.join()
    assert list(iterator) == []


class Preempted(Exception):
    """Raised by a signal handler."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends a signal")
@pytest.mark.parametrize(("kind", "whole"), [(CountingMap, True), (CountingStream, True), (CountingStream, False)])
def test_a_signal_handler_inside_next_gets_the_right_state_or_an_error(kind: Any, whole: bool) -> None:
    results: list[Any] = []

    def handle(*_: Any) -> None:
        try:
            results.append(copy.deepcopy(loader.state_dict()))
        except WorkerError as exc:
            results.append(exc)
        raise Preempted

    loader = counting(kind, never, worker=0, prefetch_factor=1)
    values(itertools.islice(iter(loader), None if whole else 1))
    iterator = iter(loader)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Preempted):
            next(iterator)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        loader.close()
    (state,) = results
    if whole:
        assert second_epoch(kind, state) == second_epoch(kind)
    else:
        assert isinstance(state, WorkerError)
        assert "inside next()" in str(state)
