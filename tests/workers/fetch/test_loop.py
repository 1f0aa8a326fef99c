"""The event loop of a dataset."""

import asyncio
import gc
import os
import threading
from typing import Any

import pytest

from feedline.workers.fetch.loop import loop_of


class Dataset:
    def __init__(self, events: list[str]) -> None:
        self.events = events

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.events.append("closed")


async def answer(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def test_a_dataset_has_one_loop_which_closes_with_it() -> None:
    events: list[str] = []
    dataset = Dataset(events)
    loop = loop_of(dataset)
    assert loop_of(dataset) is loop
    other = Dataset(events)
    assert loop_of(other) is not loop
    del dataset
    gc.collect()
    assert events == ["closed"]
    assert not loop.is_alive
    del other
    gc.collect()
    assert events == ["closed", "closed"]


def test_the_loop_ends_even_if_aclose_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Dataset):
        async def aclose(self) -> None:
            raise RuntimeError("cannot close")

    reported: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", reported.append)
    monkeypatch.setattr("sys.excepthook", lambda *exc: reported.append(exc))
    dataset = Failing([])
    loop = loop_of(dataset)
    del dataset
    gc.collect()
    assert not loop.is_alive
    assert reported


def test_a_forked_process_starts_its_own_loop() -> None:
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
