"""Failing messages under every policy: none is lost, and none is acknowledged before its batch was consumed."""

import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

import feedline
from examples.growing_file import GrowingFile
from feedline.datasets import RedisStream, StreamDataset
from feedline.errors import WorkerError
from feedline.faults import Policy, Retry
from feedline.types import EngineName
from tests.datasets.formats.streams.server import Server, find_server, has_server

pytestmark = pytest.mark.sample(16)

COUNT = 40
BAD = {0, 5, 6, 17, 18, 19, 20, 21, 39}
"""First, last, neighbours, and a whole batch."""
GOOD = set(range(COUNT)) - BAD

ENGINES = [("inline", 0), ("thread", 1), ("thread", 3), ("process", 1), ("process", 3)]
engines = pytest.mark.parametrize(("engine", "workers"), ENGINES)
processes = pytest.mark.parametrize("workers", [1, 3])


class Store(Protocol):
    """Where the messages 0, 1, ... are stored."""

    def feed(self) -> Any:
        """Return a feed of them."""

    def acknowledged(self) -> set[int]:
        """Return the messages that the store will not deliver again."""


class Lines:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "log.jsonl"
        self._offsets = folder / "offsets"
        self._path.write_text("".join(f'{{"number": "{number}"}}\n' for number in range(COUNT)))

    def feed(self) -> GrowingFile:
        return GrowingFile(self._path, offsets=self._offsets)

    def acknowledged(self) -> set[int]:
        if not self._offsets.exists():
            return set()
        places = json.loads(self._offsets.read_text())["places"]
        return {number for _, line, reader, readers in places for number in range(line) if number % readers == reader}


class Stream:
    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._name = name
        server.add(name, *range(COUNT))

    def feed(self) -> RedisStream:
        return RedisStream(self._server.url, self._name)

    def acknowledged(self) -> set[int]:
        with self._server.client() as client:
            (group,) = client.xinfo_groups(self._name) or ({"name": b"", "last-delivered-id": b"0-0"},)
            delivered = client.xrange(self._name, max=group["last-delivered-id"])
            pending = client.xpending_range(self._name, group["name"], "-", "+", COUNT) if group["name"] else []
        open_ids = {entry["message_id"] for entry in pending}
        return {int(fields[b"number"]) for number, fields in delivered if number not in open_ids}


_names = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server | None]:
    """Return a server that starts before the checks for leaks."""
    if not has_server():
        yield None
        return
    server = Server(tmp_path_factory.mktemp("r"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["lines", "redis"])
def store(request: pytest.FixtureRequest, running: Server | None, tmp_path: Path) -> Store:
    if request.param == "lines":
        return Lines(tmp_path)
    find_server()
    assert running is not None
    return Stream(running, f"failures {next(_names)}")


class Failing:
    """Fails `times` times for each bad number; a file counts the failures across processes."""

    def __init__(self, folder: Path, times: int, kills: int = -1) -> None:
        self._folder = folder
        self._times = times
        self._kills = kills

    def __call__(self, sample: Any) -> int:
        number = int(sample["number"])
        if number == self._kills and self._happens(f"killed {number}", 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if number in BAD and self._happens(f"failed {number}", self._times):
            raise ValueError(number)
        return number

    def _happens(self, what: str, times: int) -> bool:
        done = self._folder / what
        with done.open("ab") as file:
            if file.tell() >= times:
                return False
            file.write(b".")
        return True


def number_of(sample: Any) -> int:
    return int(sample["number"])


ALWAYS = 10**6


def loader_of(store: Store, transform: Any, engine: EngineName = "inline", workers: int = 0, **options: Any) -> Any:
    dataset = StreamDataset(store.feed(), transform=transform, idle_s=0.05)
    return feedline.Loader(dataset, 4, workers=workers, engine=engine, **options)


def consume(loader: Any, store: Store, *, catches: type[Exception] | None = None) -> list[int]:
    """Go through all batches; before each one, compare what is acknowledged with what was consumed."""
    found: list[int] = []
    consumed = store.acknowledged()  # acknowledged by another run
    batches = iter(loader)
    while True:
        assert store.acknowledged() - BAD <= consumed
        consumed = set(found)
        try:
            found += next(batches).tolist()
        except StopIteration:
            break
        except Exception as exc:
            if catches is None or not isinstance(exc, catches):
                raise
    loader.dataset.close()
    return found


def restarted(store: Store, workers: int) -> list[int]:
    """Return what is delivered again when the program restarts with a fixed transform."""
    return sorted(consume(loader_of(store, number_of, "thread" if workers else "inline", workers), store))


@engines
def test_skip_acknowledges_with_the_batch(store: Store, engine: EngineName, workers: int, tmp_path: Path) -> None:
    policy = Policy(otherwise="skip", max_share=1.0)
    loader = loader_of(store, Failing(tmp_path, ALWAYS), engine, workers, on_error=policy)
    assert sorted(consume(loader, store)) == sorted(GOOD)
    assert {fault.action for fault in loader.faults} == {"skip"}
    assert len(loader.faults) == len(BAD)
    left = set(range(COUNT)) - store.acknowledged()
    assert left <= {39}  # after its reader's last batch there is no further batch to acknowledge it with
    assert set(restarted(store, workers)) == left


@engines
def test_retry_loses_nothing(store: Store, engine: EngineName, workers: int, tmp_path: Path) -> None:
    loader = loader_of(store, Failing(tmp_path, 2), engine, workers, on_error=Retry(2, wait_s=0))
    assert sorted(consume(loader, store)) == list(range(COUNT))
    assert {fault.action for fault in loader.faults} == {"retry"}
    assert len(loader.faults) == len(BAD)
    assert store.acknowledged() == set(range(COUNT))


@engines
def test_retry_and_then_skip(store: Store, engine: EngineName, workers: int, tmp_path: Path) -> None:
    policy = Policy(otherwise=Retry(2, then="skip", wait_s=0), max_share=1.0)
    loader = loader_of(store, Failing(tmp_path, ALWAYS), engine, workers, on_error=policy)
    assert sorted(consume(loader, store)) == sorted(GOOD)
    assert all((tmp_path / f"failed {number}").stat().st_size == 3 for number in BAD)
    assert set(range(COUNT)) - store.acknowledged() <= {39}


@engines
@pytest.mark.parametrize("on_error", ["raise", Retry(1, wait_s=0)])
def test_raise_and_restart_delivers_again(
    store: Store, engine: EngineName, workers: int, on_error: Any, tmp_path: Path
) -> None:
    batches = iter(loader := loader_of(store, Failing(tmp_path, ALWAYS), engine, workers, on_error=on_error))
    found: list[int] = []
    with pytest.raises(ValueError, match=r"[0-9]+"):  # noqa: PT012 - until one fails
        while True:
            found += next(batches).tolist()
    assert store.acknowledged() <= set(found)
    del batches
    loader.dataset.close()
    again = restarted(store, workers)
    assert set(again) >= BAD
    assert set(found) | set(again) == set(range(COUNT))
    assert store.acknowledged() == set(range(COUNT))


@engines
def test_raise_and_continue_delivers_the_others(store: Store, engine: EngineName, workers: int, tmp_path: Path) -> None:
    loader = loader_of(store, Failing(tmp_path, ALWAYS), engine, workers)
    found = consume(loader, store, catches=ValueError)
    assert sorted(found) == sorted(GOOD)
    assert set(range(COUNT)) - store.acknowledged() <= {39}


@processes
@pytest.mark.parametrize("on_error", [Policy(otherwise="skip", max_share=1.0), Retry(2, wait_s=0)])
def test_a_killed_worker_loses_nothing(store: Store, workers: int, on_error: Any, tmp_path: Path) -> None:
    times = 2 if isinstance(on_error, Retry) else ALWAYS
    loader = loader_of(store, Failing(tmp_path, times, kills=22), "process", workers, on_error=on_error)
    with pytest.warns(feedline.errors.WorkerWarning):
        found = consume(loader, store)
    assert set(found) == (set(range(COUNT)) if isinstance(on_error, Retry) else GOOD)
    assert set(range(COUNT)) - store.acknowledged() <= {39}


@engines
def test_a_batch_that_cannot_be_collated_is_retried(
    store: Store, engine: EngineName, workers: int, tmp_path: Path
) -> None:
    class Collate:
        def __call__(self, numbers: list[int]) -> Any:
            if Failing(tmp_path, 0)._happens(f"collated {numbers[0]}", 1):
                raise ValueError(numbers)
            return np.array(numbers)

    loader = loader_of(store, number_of, engine, workers, on_error=Retry(1, wait_s=0), collate_fn=Collate())
    assert sorted(consume(loader, store)) == list(range(COUNT))
    assert store.acknowledged() == set(range(COUNT))


@pytest.mark.parametrize("on_error", ["raise", "retry"])
@pytest.mark.parametrize("while_collating", [False, True])
def test_an_interrupt_loses_nothing(store: Store, while_collating: bool, on_error: str, tmp_path: Path) -> None:
    """Without workers, Ctrl-C interrupts the making of samples, and the next iteration makes the batch again."""

    def interrupted(sample: Any) -> int:
        number = number_of(sample)
        if not while_collating and number in (6, 9) and Failing(tmp_path, 0)._happens(f"interrupted {number}", 1):
            raise KeyboardInterrupt
        return number

    def collate(numbers: list[int]) -> Any:
        if while_collating and numbers[0] == 8 and Failing(tmp_path, 0)._happens("interrupted", 1):
            raise KeyboardInterrupt
        return np.array(numbers)

    loader = loader_of(store, interrupted, on_error=on_error, collate_fn=collate)
    batches = iter(loader)
    found: list[int] = []
    interrupts = 0
    while True:
        try:
            found += next(batches).tolist()
        except StopIteration:
            break
        except KeyboardInterrupt:
            interrupts += 1
            assert store.acknowledged() <= set(found)
            with pytest.raises(WorkerError, match="was ended by"):
                next(batches)
            batches = iter(loader)
    assert interrupts == (1 if while_collating else 2)
    assert found == list(range(COUNT))
    assert store.acknowledged() == set(range(COUNT))
    loader.dataset.close()


class Shaky(GrowingFile):
    """Fails before each of three messages."""

    calls = 0

    def receive(self, most: int, wait_s: float) -> Any:
        self.calls += 1
        if self.calls in (1, 3, 5):
            raise OSError("the server is away")
        return super().receive(1, wait_s)


@pytest.mark.parametrize("on_error", [Retry(2, wait_s=0), Policy(otherwise="skip", max_share=1.0)])
def test_an_exception_between_messages_repeats_none(on_error: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{number}\n" for number in range(3)))
    dataset = StreamDataset(Shaky(path), idle_s=0)
    assert [batch.tolist() for batch in feedline.Loader(dataset, 1, on_error=on_error)] == [[0], [1], [2]]
    dataset.close()


def test_messages_acknowledged_on_receipt_are_retried_too(tmp_path: Path) -> None:
    dataset = StreamDataset(Lines(tmp_path).feed(), transform=Failing(tmp_path, 1), idle_s=0, acknowledge="received")
    loader = feedline.Loader(dataset, 4, on_error=Retry(1, wait_s=0))
    assert [number for batch in loader for number in batch.tolist()] == list(range(COUNT))
    dataset.close()
