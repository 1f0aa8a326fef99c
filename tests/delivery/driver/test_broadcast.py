"""Calls to methods of the dataset reach the workers."""

from __future__ import annotations

import copy
import gc
import os
import select
import signal
from typing import Any

import numpy as np
import pytest

from feedline import Loader
from feedline.abc import Columnar
from feedline.delivery.driver.broadcast import Broadcast
from feedline.delivery.driver.driver import Driver
from feedline.errors import BadOption, NotPicklable
from feedline.types import Call, EngineName
from tests.delivery.stepping import Clock, SteppingEngine, driver_of


class Scaled:
    """Samples depend on the last `set_scale` and `set_epoch`."""

    def __init__(self) -> None:
        self.scale = 1
        self.epoch = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index * self.scale + 100 * self.epoch

    def set_scale(self, scale: int) -> None:
        self.scale = scale

    def set_epoch(self, epoch: int, *, offset: int = 0) -> None:
        self.epoch = epoch + offset


def start(worker_count: int = 2) -> tuple[Driver, SteppingEngine]:
    engine = SteppingEngine(worker_count, Clock(), lambda _: 0.0)
    return driver_of(engine), engine


def calls(engine: SteppingEngine) -> list[tuple[int, Call]]:
    return [(worker, task.indices) for worker, task in engine.submitted]


# -- explicit calls ---


def test_a_method_is_called_here_and_in_every_worker() -> None:
    dataset = Scaled()
    broadcast = Broadcast(dataset)
    (first, one), (second, two) = start(2), start(1)
    broadcast.join(first)
    broadcast.join(second)
    broadcast.call("set_scale", 3)
    assert dataset.scale == 3
    assert calls(one) == [(0, Call("set_scale", (3,))), (1, Call("set_scale", (3,)))]
    assert calls(two) == [(0, Call("set_scale", (3,)))]
    first.close()
    second.close()


def test_closed_workers_get_no_calls_and_are_not_kept_alive() -> None:
    broadcast = Broadcast(Scaled())
    driver, engine = start()
    broadcast.join(driver)
    driver.close()
    broadcast.call("set_scale", 3)
    assert calls(engine) == []
    del driver, engine
    gc.collect()
    assert list(broadcast._drivers) == [], "closed drivers are not kept alive"


@pytest.mark.parametrize("name", ["scale", "no_such_method"])
def test_names_that_are_not_methods_are_rejected(name: str) -> None:
    with pytest.raises(BadOption, match=f"a Scaled, has no method '{name}'"):
        Broadcast(Scaled()).call(name)


def test_a_forked_process_does_not_call_its_parents_workers() -> None:
    dataset = Scaled()
    broadcast = Broadcast(dataset)
    driver, engine = start(1)
    broadcast.join(driver)
    driver.pid += 1
    broadcast.call("set_scale", 3)
    assert (dataset.scale, calls(engine)) == (3, [])
    driver.close()


def test_the_last_epoch_set_is_known_until_it_is_forgotten() -> None:
    broadcast = Broadcast(Scaled())
    epochs = [broadcast.last_set_epoch]
    for name, number in (("set_scale", 3), ("set_epoch", 5)):
        broadcast.call(name, number)
        epochs.append(broadcast.last_set_epoch)
    broadcast.forget_epoch()
    assert [*epochs, broadcast.last_set_epoch, broadcast.set_epoch_count] == [None, None, 5, None, 1]


def test_copies_of_a_broadcast_do_not_reach_the_originals_workers() -> None:
    broadcast = Broadcast(Scaled())
    driver, engine = start(1)
    broadcast.join(driver)
    copy.deepcopy(broadcast).call("set_scale", 3)
    copy.copy(broadcast).call("set_scale", 4)
    assert calls(engine) == []
    driver.close()


# -- with workers ---


class Growing(Scaled):
    """Appends to a list, which threads share."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def __getitem__(self, index: int) -> int:
        return len(self.numbers)

    def add_number(self, number: int) -> None:
        self.numbers.append(number)


def test_on_threads_shared_objects_change_once_per_worker() -> None:
    """Threads have shallow copies of the dataset, and the method is called on each, as the guide says."""
    dataset = Growing()
    loader = Loader(dataset, 2, workers=2, engine="thread", persistent=True)
    try:
        list(loader)
        loader.broadcast("add_number", 1)
        list(loader)
        assert dataset.numbers == [1, 1, 1]
    finally:
        loader.close()


@pytest.mark.parametrize("engine_name", ["thread", "process"])
def test_persistent_workers_execute_calls(engine_name: EngineName) -> None:
    dataset = Scaled()
    loader = Loader(dataset, 2, workers=2, engine=engine_name, persistent=True)
    try:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        loader.broadcast("set_scale", 10)
        assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30]]
        loader.set_epoch(2)
        assert [batch.tolist() for batch in loader] == [[200, 210], [220, 230]]
    finally:
        loader.close()


class ScaledColumns(Columnar):
    """The same for samples that are read in one vectorised step."""

    def __init__(self) -> None:
        self.rows = np.arange(400)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]

    def columns(self) -> Any:
        return self.rows

    def set_scale(self, scale: int) -> None:
        self.rows = np.arange(400) * scale


@pytest.mark.parametrize("engine_name", ["inline", "thread"])
def test_a_call_within_an_epoch_reaches_columns(engine_name: EngineName) -> None:
    with Loader(ScaledColumns(), 2, workers=int(engine_name != "inline"), engine=engine_name) as loader:
        batches = iter(loader)
        seen = [next(batches).tolist() for _ in range(2)]
        loader.broadcast("set_scale", 10)
        seen += [batch.tolist() for batch in batches]
        scales = [batch[1] // (2 * number + 1) for number, batch in enumerate(seen)]
        assert scales == sorted(scales), "from some batch on"
        assert (scales[1], scales[-1]) == (1, 10)
        assert engine_name != "inline" or scales[2] == 10, "nothing is in flight"


# -- workers that are replaced ---


class Added(Scaled):
    """The sum is right only if every call arrives exactly once."""

    def add(self, number: int) -> None:
        self.epoch += number


@pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning")
@pytest.mark.parametrize(
    "start_method", ["fork", *(pytest.param(method, marks=pytest.mark.slow) for method in ("forkserver", "spawn"))]
)
def test_a_replacement_worker_gets_every_call_exactly_once(start_method: str) -> None:
    loader = Loader(Added(), 2, workers=2, persistent=True, start_method=start_method)
    batches: Any = iter(loader)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]
    loader.broadcast("add", 1)
    assert [batch.tolist() for batch in loader] == [[100, 101], [102, 103]]
    loader.broadcast("add", 1)  # still on its way when the worker dies
    pid = batches.worker_pids[0]
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([handle], [], [], 30)[0]
    os.close(handle)
    loader.broadcast("add", 1)  # the worker is dead
    assert [batch.tolist() for batch in loader] == [[300, 301], [302, 303]]
    loader.broadcast("add", 1)
    assert [batch.tolist() for batch in loader] == [[400, 401], [402, 403]]
    assert loader.stats()["restarted_workers"] == 1
    loader.close()


def test_unpicklable_arguments_raise_in_broadcast() -> None:
    loader = Loader(Scaled(), 2, workers=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(NotPicklable, match="set_scale"):
        loader.broadcast("set_scale", (number for number in range(3)))
    loader.close()
