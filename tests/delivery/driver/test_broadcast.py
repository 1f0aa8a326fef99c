"""Workers hear of calls of the dataset's methods."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import select
import signal
from typing import Any, ClassVar

import pytest

from feedline import Loader
from feedline.delivery.driver import broadcast as broadcast_module
from feedline.delivery.driver.broadcast import Broadcast
from feedline.delivery.driver.driver import Driver
from feedline.errors import BadOption, BatchNotPicklable
from feedline.types import Call, EngineName
from tests.loader.drivers import driver_of
from tests.loader.stepping import Clock, SteppingEngine

pytestmark = pytest.mark.sample(3)


class Scaled:
    """Samples are multiplied by what the dataset was told."""

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


# -- by hand ---


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


def test_workers_that_are_gone_are_not_told() -> None:
    broadcast = Broadcast(Scaled())
    driver, engine = start()
    broadcast.join(driver)
    driver.close()
    broadcast.call("set_scale", 3)
    assert calls(engine) == []
    del driver, engine
    gc.collect()
    assert list(broadcast._drivers) == [], "and not kept alive"


def test_without_workers_it_is_an_ordinary_call() -> None:
    dataset = Scaled()
    Broadcast(dataset).call("set_scale", 3)
    assert dataset.scale == 3


@pytest.mark.parametrize("name", ["scale", "no_such_method"])
def test_what_cannot_be_called_is_refused(name: str) -> None:
    with pytest.raises(BadOption, match=f"a Scaled, has no method '{name}'"):
        Broadcast(Scaled()).call(name)


def test_an_error_here_is_raised_here_and_nobody_else_is_told() -> None:
    broadcast = Broadcast(Scaled())
    driver, engine = start()
    broadcast.join(driver)
    with pytest.raises(TypeError):
        broadcast.call("set_scale")
    assert calls(engine) == []
    driver.close()


def test_arguments_that_cannot_be_sent_are_refused_where_they_are_given() -> None:
    loader = Loader(Scaled(), 2, workers=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(BatchNotPicklable, match="set_scale"):
        loader.broadcast("set_scale", (number for number in range(3)))
    loader.close()


def test_workers_of_the_process_that_this_one_was_forked_from_are_not_told() -> None:
    dataset = Scaled()
    broadcast = Broadcast(dataset)
    driver, engine = start(1)
    broadcast.join(driver)
    driver.pid += 1
    broadcast.call("set_scale", 3)
    assert (dataset.scale, calls(engine)) == (3, [])
    driver.close()


# -- set_epoch, which programs call on the dataset itself ---


def test_the_epoch_that_the_dataset_was_told_is_known_until_a_state_says_another() -> None:
    dataset = Scaled()
    broadcast = Broadcast(dataset, watches=True)
    told = [broadcast.last_set_epoch]
    for name, number in (("set_scale", 3), ("set_epoch", 5)):
        broadcast.call(name, number)
        told.append(broadcast.last_set_epoch)
    dataset.set_epoch(6)
    broadcast.catch_up()
    told.append(broadcast.last_set_epoch)
    broadcast.forget_epoch()
    assert [*told, broadcast.last_set_epoch] == [None, None, 5, 6, None]


def test_nobody_watches_for_workers_that_do_not_last() -> None:
    class Fresh(Scaled):
        def set_epoch(self, epoch: int, *, offset: int = 0) -> None:
            super().set_epoch(epoch, offset=offset)

    before = Fresh.set_epoch
    Broadcast(Fresh())
    assert Fresh.set_epoch is before, "the user's class is left alone"


def test_workers_catch_up_with_what_the_dataset_was_told_meanwhile() -> None:
    dataset = Scaled()
    broadcast = Broadcast(dataset, watches=True)
    driver, engine = start(1)
    broadcast.join(driver)
    broadcast.catch_up()
    assert calls(engine) == [], "nothing has happened"
    dataset.set_epoch(3)
    dataset.set_epoch(4, offset=10)
    broadcast.catch_up()
    broadcast.catch_up()
    assert calls(engine) == [(0, Call("set_epoch", (4,), {"offset": 10}))], "the last, as it was said, and once"
    driver.close()


def test_workers_that_come_later_have_a_copy_that_knows() -> None:
    dataset = Scaled()
    broadcast = Broadcast(dataset, watches=True)
    dataset.set_epoch(3)
    driver, engine = start(1)
    broadcast.join(driver)
    broadcast.catch_up()
    assert calls(engine) == []
    driver.close()


def test_what_was_broadcast_is_not_told_twice() -> None:
    broadcast = Broadcast(Scaled(), watches=True)
    driver, engine = start(1)
    broadcast.join(driver)
    broadcast.call("set_epoch", 5)
    broadcast.catch_up()
    assert len(calls(engine)) == 1
    driver.close()


def test_two_loaders_of_one_dataset_both_hear_of_it() -> None:
    dataset = Scaled()
    listeners = [Broadcast(dataset, watches=True), Broadcast(dataset, watches=True)]
    drivers = [start(1), start(1)]
    for broadcast, (driver, _) in zip(listeners, drivers, strict=True):
        broadcast.join(driver)
    dataset.set_epoch(3)
    for broadcast, (driver, engine) in zip(listeners, drivers, strict=True):
        broadcast.catch_up()
        assert len(calls(engine)) == 1
        driver.close()


def test_other_datasets_of_the_class_do_not_count() -> None:
    broadcast = Broadcast(Scaled(), watches=True)
    driver, engine = start(1)
    broadcast.join(driver)
    Scaled().set_epoch(3)
    broadcast.catch_up()
    assert calls(engine) == []
    driver.close()


# -- the dataset stays what it was ---


def test_a_dataset_that_is_watched_is_copied_and_pickled_as_ever() -> None:
    dataset = Scaled()
    Broadcast(dataset, watches=True)
    for twin in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert vars(twin) == vars(dataset)
        twin.set_epoch(9)
        assert dataset.epoch == 0
    assert Scaled.set_epoch.__name__ == "set_epoch"
    assert Scaled.set_epoch.__doc__ is None


def test_the_method_is_wrapped_once_however_many_loaders_there_are() -> None:
    class Fresh(Scaled):
        def set_epoch(self, epoch: int, *, offset: int = 0) -> None:
            super().set_epoch(epoch, offset=offset)

    Broadcast(Fresh(), watches=True)
    wrapped = Fresh.set_epoch
    for _ in range(10):
        Broadcast(Fresh(), watches=True)
    assert Fresh.set_epoch is wrapped


def test_nothing_is_kept_of_a_dataset_that_is_gone() -> None:
    before = set(broadcast_module._notes)
    dataset = Scaled()
    broadcast = Broadcast(dataset, watches=True)
    assert set(broadcast_module._notes) == {*before, id(dataset)}
    del broadcast, dataset
    gc.collect()
    assert set(broadcast_module._notes) <= before


class Frozen:
    """Nobody can refer to it weakly."""

    __slots__ = ("epoch",)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Static(Scaled):
    told: ClassVar[list[int]] = []

    @staticmethod
    def set_epoch(epoch: int) -> None:  # type: ignore[override]
        Static.told.append(epoch)


class OfTheClass(Scaled):
    told: ClassVar[list[int]] = []

    @classmethod
    def set_epoch(cls, epoch: int) -> None:  # type: ignore[override]
        cls.told.append(epoch)


@pytest.mark.parametrize("kind", [Frozen, Static, OfTheClass])
def test_datasets_of_an_unusual_kind_work_as_before(kind: Any) -> None:
    dataset = kind()
    broadcast = Broadcast(dataset, watches=True)
    dataset.set_epoch(3)
    assert (dataset.epoch if kind is Frozen else dataset.told[-1]) == 3
    broadcast.call("set_epoch", 4)
    assert (dataset.epoch if kind is Frozen else dataset.told[-1]) == 4


def test_a_dataset_without_set_epoch() -> None:
    Broadcast([1, 2, 3], watches=True).catch_up()


def test_a_copy_of_the_loader_has_a_broadcast_of_its_own() -> None:
    broadcast = Broadcast(Scaled())
    driver, engine = start(1)
    broadcast.join(driver)
    copy.deepcopy(broadcast).call("set_scale", 3)
    copy.copy(broadcast).call("set_scale", 4)
    assert calls(engine) == []
    driver.close()


# -- with workers ---


class Growing(Scaled):
    """What it was told lies in a list, which threads share."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []

    def __getitem__(self, index: int) -> int:
        return len(self.told)

    def tell(self, number: int) -> None:
        self.told.append(number)


def test_threads_change_what_they_share_once_each() -> None:
    """Copies of the dataset are shallow, and the method is called on every one: the guide says so."""
    dataset = Growing()
    loader = Loader(dataset, 2, workers=2, engine="thread", persistent=True)
    try:
        list(loader)
        loader.broadcast("tell", 1)
        list(loader)
        assert dataset.told == [1, 1, 1]
    finally:
        loader.close()


@pytest.mark.parametrize("engine_name", ["thread", "process"])
def test_workers_that_are_kept_do_as_they_are_told(engine_name: EngineName) -> None:
    dataset = Scaled()
    loader = Loader(dataset, 2, workers=2, engine=engine_name, persistent=True)
    try:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        loader.broadcast("set_scale", 10)
        assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30]]
        dataset.set_epoch(1, offset=1)
        assert [batch.tolist() for batch in loader] == [[200, 210], [220, 230]]
    finally:
        loader.close()


# -- workers that are replaced ---


class Added(Scaled):
    """Hears every call once, or the sum is wrong."""

    def add(self, number: int) -> None:
        self.epoch += number


@pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning")
@pytest.mark.parametrize("start_method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_that_takes_the_place_of_another_has_heard_every_call_once(start_method: str) -> None:
    loader = Loader(Added(), 2, workers=2, persistent=True, start_method=start_method)
    batches: Any = iter(loader)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]
    loader.broadcast("add", 1)
    assert [batch.tolist() for batch in loader] == [[100, 101], [102, 103]]
    loader.broadcast("add", 1)  # on its way when the worker dies
    pid = batches.worker_pids[0]
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([handle], [], [], 30)[0]
    os.close(handle)
    loader.broadcast("add", 1)  # to nobody
    assert [batch.tolist() for batch in loader] == [[300, 301], [302, 303]]
    loader.broadcast("add", 1)
    assert [batch.tolist() for batch in loader] == [[400, 401], [402, 403]]
    assert loader.stats()["restarted_workers"] == 1
    loader.close()
