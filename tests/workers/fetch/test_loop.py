"""Event loops that belong to datasets."""

import asyncio
import gc
import os
import threading
from typing import Any

import pytest

from feedline.workers.fetch.loop import Loop, loop_of


class Dataset:
    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.heard.append("closed")


async def answer(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def fail() -> None:
    await asyncio.sleep(0)
    raise KeyError("inside")


def test_coroutines_run_on_another_thread() -> None:
    loop = Loop()
    assert loop.run(answer(3)) == 3
    with pytest.raises(KeyError, match="inside"):
        loop.run(fail())
    loop.close()
    loop.close()
    assert not loop.is_alive


def test_what_is_under_way_is_cancelled() -> None:
    loop = Loop()
    heard: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def begin() -> None:
        heard.append("begun")
        tasks.append(asyncio.ensure_future(wait()))
        await asyncio.sleep(0)

    tasks: list[Any] = []
    loop.run(begin())
    loop.close()
    assert heard == ["begun", "cancelled"]


def test_a_dataset_has_one_loop_and_takes_it_along() -> None:
    heard: list[str] = []
    dataset = Dataset(heard)
    loop = loop_of(dataset)
    assert loop_of(dataset) is loop
    other = Dataset(heard)
    assert loop_of(other) is not loop
    del dataset
    gc.collect()
    assert heard == ["closed"]
    assert not loop.is_alive
    del other
    gc.collect()
    assert heard == ["closed", "closed"]


def test_an_error_in_aclose_ends_the_loop_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Dataset):
        async def aclose(self) -> None:
            raise RuntimeError("cannot close")

    told: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    monkeypatch.setattr("sys.excepthook", lambda *exc: told.append(exc))
    dataset = Failing([])
    loop = loop_of(dataset)
    del dataset
    gc.collect()
    assert not loop.is_alive
    assert told


def test_a_forked_process_begins_another() -> None:
    dataset = Dataset([])
    loop = loop_of(dataset)
    assert loop.run(answer(1)) == 1
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            own = loop_of(dataset)
            status = 0 if own is not loop and own.run(answer(5)) == 5 else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert loop.run(answer(2)) == 2
    assert sum(thread.name == "feedline-async" for thread in threading.enumerate()) == 1
