"""Asynchronous datasets: all samples of a batch at once, in every engine, with every policy."""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import feedline
from feedline.types import EngineName
from tests.faults.programs import running

engines = pytest.mark.parametrize(("engine", "workers"), [("inline", 0), ("thread", 2), ("process", 2)])


class WaitForEachOther:
    """Eight samples wait for each other: a batch of eight completes only if all of them run concurrently."""

    def __init__(self) -> None:
        self.started = 0

    def __len__(self) -> int:
        return 24

    async def __getitem__(self, index: int) -> int:
        self.started += 1
        needed = -(-self.started // 8) * 8
        for _ in range(100_000):
            if self.started >= needed:
                return index
            await asyncio.sleep(0)
        raise AssertionError("the samples of a batch were made one after the other")


@engines
def test_the_samples_of_a_batch_run_concurrently(engine: EngineName, workers: int) -> None:
    batches = list(feedline.Loader(WaitForEachOther(), 8, workers=workers, engine=engine))
    assert np.concatenate(batches).tolist() == list(range(24))


class Counting:
    max_concurrency = 3

    def __init__(self) -> None:
        self.running = 0
        self.peak = 0

    def __len__(self) -> int:
        return 20

    async def __getitem__(self, index: int) -> int:
        self.running += 1
        self.peak = max(self.peak, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        return index


def test_max_concurrency_limits_how_many_samples_run_at_once() -> None:
    dataset = Counting()
    assert np.concatenate(list(feedline.Loader(dataset, 20))).tolist() == list(range(20))
    assert dataset.peak == 3


class Drawing:
    """Draws before and after waiting; the order in which samples finish differs from the order of indices."""

    def __len__(self) -> int:
        return 40

    async def __getitem__(self, index: int) -> list[float]:
        first = feedline.rng().random()
        await asyncio.sleep(0.001 * (index * 7 % 5))
        second = await asyncio.to_thread(lambda: feedline.rng().random())
        return [index, first, second, feedline.rng().random()]


class Plain:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> list[float]:
        return [index, *feedline.rng().random(3)]


def numbers(dataset: Any, **options: Any) -> Any:
    loader = feedline.Loader(dataset, 10, shuffle=True, seed=5, **options)
    return [[np.stack(batch).tolist() for batch in loader] for _ in range(2)]


@engines
def test_each_sample_draws_its_own_numbers(engine: EngineName, workers: int) -> None:
    """The same numbers as without async."""
    assert numbers(Drawing(), workers=workers, engine=engine) == numbers(Plain())


class Failing:
    bad = (5, 11)

    def __len__(self) -> int:
        return 20

    async def __getitem__(self, index: int) -> int:
        await asyncio.sleep(0.0005 * (20 - index))
        if index in self.bad:
            raise KeyError(f"no {index}")
        return index


@engines
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_error_policies_work_as_with_a_synchronous_dataset(
    on_error: Literal["skip", "replace"], engine: EngineName, workers: int
) -> None:
    class Sync(Failing):
        def __getitem__(self, index: int) -> int:  # type: ignore[override]
            if index in self.bad:
                raise KeyError(f"no {index}")
            return index

    expected = [batch.tolist() for batch in feedline.Loader(Sync(), 6, on_error=on_error)]
    loader = feedline.Loader(Failing(), 6, workers=workers, engine=engine, on_error=on_error)
    assert [batch.tolist() for batch in loader] == expected
    assert sorted(fault.index for fault in loader.faults) == [5, 11]


class Together:
    def __init__(self, bad: int | None = None) -> None:
        self.calls: list[Any] = []
        self.bad = bad

    def __len__(self) -> int:
        return 12

    async def __getitem__(self, index: int) -> int:
        return index

    async def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls.append(indices)
        await asyncio.sleep(0)
        if self.bad in indices:
            raise KeyError(self.bad)
        return [10 * index for index in indices]


def test_async_getitems_gets_a_whole_batch_in_one_call() -> None:
    dataset = Together()
    assert np.concatenate(list(feedline.Loader(dataset, 5))).tolist() == [10 * index for index in range(12)]
    assert dataset.calls == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert list(feedline.Loader(dataset, None)) == list(range(12))
    skipped = feedline.Loader(Together(bad=7), 12, on_error="skip")
    assert np.concatenate(list(skipped)).tolist() == [10 * index for index in range(12) if index != 7]


def test_a_loader_works_inside_a_running_event_loop() -> None:
    async def notebook() -> list[int]:
        return [int(index) for batch in feedline.Loader(Counting(), 6) for index in batch]

    assert asyncio.run(notebook()) == list(range(20))


class Session:
    """Opens a resource that belongs to the event loop, and closes it."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.session: Any = None

    def __len__(self) -> int:
        return 6

    async def __getitem__(self, index: int) -> int:
        loop = asyncio.get_running_loop()
        if self.session is None:
            self.session = loop
            self._write("open")
        assert self.session is loop
        return index

    async def aclose(self) -> None:
        assert self.session is asyncio.get_running_loop()
        self._write("close")

    def _write(self, word: str) -> None:
        with open(self.log, "a") as file:
            file.write(f"{word} {os.getpid()}\n")


@pytest.mark.parametrize(("engine", "workers"), [("inline", 0), ("thread", 1), ("process", 1)])
def test_aclose_runs_on_the_event_loop_of_the_dataset(engine: EngineName, workers: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    loader = feedline.Loader(Session(log), 2, workers=workers, engine=engine)
    for _ in range(2):
        assert np.concatenate(list(loader)).tolist() == list(range(6))
    del loader
    lines = _logged_words(log)
    assert lines.count("open") == lines.count("close") == (1 if engine == "inline" else 2)


def _logged_words(log: Path) -> list[str]:
    """Return the logged words after every worker has ended."""
    import gc
    import multiprocessing

    gc.collect()
    for child in multiprocessing.active_children():
        child.join()
    for thread in threading.enumerate():
        if thread.name.startswith("feedline"):
            thread.join(100)
    return [line.split()[0] for line in log.read_text().splitlines()]


class Raising(Failing):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def __getitem__(self, index: int) -> int:
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupt_or_a_cancellation_by_a_sample_does_not_hang(error: type[BaseException]) -> None:
    if error is asyncio.CancelledError and sys.version_info < (3, 11):
        pytest.skip("tasks cannot be asked whether they are being cancelled")
    with pytest.raises(error, match="from inside"):
        list(feedline.Loader(Raising(error("from inside")), 5))


INTERRUPTED = """
import asyncio

class Endless(Numbers):
    async def __getitem__(self, index):
        if index == 3:
            say("waiting")
        try:
            await asyncio.sleep(3600)
        finally:
            say("cancelled")

list(Loader(Endless(), 4))
"""


@pytest.mark.slow
def test_ctrl_c_interrupts_the_wait() -> None:
    with running(INTERRUPTED, finalizes=True) as program:
        assert program.line() == "waiting"
        program.kill(signal.SIGINT)
        assert [program.line() for _ in range(4)] == ["cancelled"] * 4
        assert program.end() == -signal.SIGINT
