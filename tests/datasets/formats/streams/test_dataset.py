"""Messages as samples, under every policy: none is lost, and none is acknowledged before its batch was consumed."""

import itertools
import json
import multiprocessing
import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from examples.growing_file import GrowingFile
from feedline.datasets import Feed, Message, StreamDataset
from feedline.errors import BadOption, BadState, SourceError, WorkerError
from feedline.faults import Policy, Retry
from feedline.types import EngineName
from tests.datasets.formats.streams.stores import COUNT, Lines, Store, number_of

ALL = set(range(COUNT))
BAD = {0, 5, 6, 17, 18, 19, 20, 21, 39}
"""First, last, neighbours, and a whole batch."""
ALWAYS = 10**6
SKIP = Policy(otherwise="skip", max_share=1.0)

engines = pytest.mark.parametrize(
    ("engine", "workers"),
    [
        ("inline", 0),
        ("thread", 3),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in [("thread", 1), ("process", 1), ("process", 3)]),
    ],
)


class Failing:
    """Fails `times` times for each bad number; files count the failures across processes."""

    def __init__(self, folder: Path, times: int, kills: int = -1) -> None:
        self._folder = folder
        self._times = times
        self._kills = kills

    def __call__(self, sample: Any) -> int:
        number = number_of(sample)
        if number == self._kills and self.happens(f"killed {number}", 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if number in BAD and self.happens(f"failed {number}", self._times):
            raise ValueError(number)
        return number

    def happens(self, what: str, times: int = 1) -> bool:
        with (self._folder / what).open("ab") as file:
            if file.tell() >= times:
                return False
            file.write(b".")
        return True


def loader_of(store: Store, transform: Any, engine: EngineName = "inline", workers: int = 0, **options: Any) -> Any:
    dataset = StreamDataset(store.feed(), transform=transform, idle_s=0.05)
    return feedline.Loader(dataset, 4, workers=workers, engine=engine, **options)


def consume(loader: Any, store: Store, *, catches: tuple[type[Exception], ...] = ()) -> list[int]:
    """Go through all batches; before each one, compare what is acknowledged with what was consumed."""
    found: list[int] = []
    consumed = store.acknowledged()  # by another run
    batches = iter(loader)
    while True:
        assert store.acknowledged() - BAD <= consumed
        consumed |= set(found)
        try:
            found += next(batches).tolist()
        except StopIteration:
            break
        except catches:
            continue
    loader.dataset.close()
    return found


def again(store: Store, workers: int) -> list[int]:
    """Return what is delivered again when the program restarts with a fixed transform."""
    return consume(loader_of(store, number_of, "thread" if workers else "inline", workers), store)


@engines
@pytest.mark.parametrize(
    ("policy", "times", "calls"),
    [
        ("raise", 0, 0),
        (SKIP, ALWAYS, 1),
        (Retry(2, wait_s=0), 2, 2),
        (Policy(otherwise=Retry(2, then="skip", wait_s=0), max_share=1.0), ALWAYS, 3),
    ],
)
def test_every_message_is_acknowledged_with_its_batch(
    store: Store, engine: EngineName, workers: int, policy: Any, times: int, calls: int, tmp_path: Path
) -> None:
    loader = loader_of(store, Failing(tmp_path, times), engine, workers, on_error=policy)
    lost = BAD if times == ALWAYS else set()
    assert sorted(consume(loader, store)) == sorted(ALL - lost)
    assert all((tmp_path / f"failed {number}").stat().st_size == calls for number in BAD)
    left = ALL - store.acknowledged()
    assert left <= ({39} if lost else set())  # after its reader's last batch there is none to acknowledge it with
    assert set(again(store, workers)) == left


@engines
@pytest.mark.parametrize("on_error", ["raise", Retry(1, wait_s=0)])
def test_a_message_that_raises_comes_again_if_the_program_restarts(
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
    assert set(repeated := again(store, workers)) >= BAD
    assert set(found) | set(repeated) == ALL == store.acknowledged()


@engines
def test_the_others_of_its_batch_come_if_the_loop_goes_on(
    store: Store, engine: EngineName, workers: int, tmp_path: Path
) -> None:
    loader = loader_of(store, Failing(tmp_path, ALWAYS), engine, workers)
    assert sorted(consume(loader, store, catches=(ValueError,))) == sorted(ALL - BAD)
    assert ALL - store.acknowledged() <= {39}


@pytest.mark.parametrize(
    ("workers", "on_error", "times"),
    [(3, SKIP, ALWAYS), pytest.param(1, Retry(2, wait_s=0), 2, marks=pytest.mark.slow)],
)
def test_a_killed_worker_loses_nothing(store: Store, workers: int, on_error: Any, times: int, tmp_path: Path) -> None:
    loader = loader_of(store, Failing(tmp_path, times, kills=22), "process", workers, on_error=on_error)
    with pytest.warns(feedline.errors.WorkerWarning):
        found = consume(loader, store)
    assert set(found) == (ALL - BAD if times == ALWAYS else ALL)
    assert ALL - store.acknowledged() <= {39}


@engines
def test_a_batch_that_cannot_be_collated(store: Store, engine: EngineName, workers: int, tmp_path: Path) -> None:
    class Collate:
        def __call__(self, numbers: list[int]) -> Any:
            if numbers[0] % 3 and Failing(tmp_path, 0).happens(f"collated {numbers[0]}"):
                raise ValueError(numbers)
            return np.array(numbers)

    loader = loader_of(store, number_of, engine, workers, on_error=Retry(1, wait_s=0), collate_fn=Collate())
    assert sorted(consume(loader, store)) == sorted(ALL) == sorted(store.acknowledged())


@pytest.mark.parametrize(
    ("while_collating", "on_error"), [(False, "retry"), pytest.param(True, "raise", marks=pytest.mark.slow)]
)
def test_an_interrupt_loses_nothing(store: Store, while_collating: bool, on_error: str, tmp_path: Path) -> None:
    """Without workers, Ctrl-C interrupts the making of samples, and the next iteration makes the batch again."""
    once = Failing(tmp_path, 0).happens

    def interrupted(sample: Any) -> int:
        number = number_of(sample)
        if not while_collating and number in (6, 9) and once(f"interrupted {number}"):
            raise KeyboardInterrupt
        return number

    def collate(numbers: list[int]) -> Any:
        if while_collating and numbers[0] == 8 and once("interrupted"):
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
    assert store.acknowledged() == ALL
    loader.dataset.close()


def _consume(store: Store, stop_after: int, found: Any) -> None:
    for step, batch in enumerate(loader_of(store, number_of, "process", 1)):
        found.put(batch.tolist())
        if step == stop_after:
            found.close()
            found.join_thread()
            os.kill(os.getpid(), signal.SIGKILL)
    found.put(None)


def test_a_crash_repeats_only_the_batch_that_was_processed(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    runs = []
    for steps in (3, 4, None):
        queue = context.Queue()
        program = context.Process(target=_consume, args=(store, -1 if steps is None else steps - 1, queue))
        program.start()
        runs.append([number for batch in itertools.islice(iter(queue.get, None), steps) for number in batch])
        program.join()
        program.close()
        queue.close()
        queue.join_thread()
    assert runs == [list(range(12)), list(range(8, 24)), list(range(20, 40))]


def test_a_refused_acknowledgement_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Lines(tmp_path)
    batches = iter(loader_of(store, number_of))
    next(batches)
    acknowledge, refused = GrowingFile.acknowledge, iter([True, True])

    def refuse(self: GrowingFile, receipts: list[Any]) -> None:
        if next(refused, False):
            raise SourceError("the server is away")
        acknowledge(self, receipts)

    monkeypatch.setattr(GrowingFile, "acknowledge", refuse)
    for _ in range(2):
        with pytest.raises(SourceError, match="away"):
            next(batches)
    assert next(batches).tolist() == [4, 5, 6, 7]
    assert store.acknowledged() == {0, 1, 2, 3}


def test_an_endless_stream_ends_when_it_is_closed(tmp_path: Path) -> None:
    dataset = StreamDataset(Lines(tmp_path).feed(), transform=number_of)
    loader = feedline.Loader(dataset, 2, workers=2, engine="thread", in_order=False)
    batches = iter(loader)
    closer = threading.Timer(0.3, dataset.close)
    closer.start()
    assert {number for batch in batches for number in batch.tolist()} == ALL
    closer.join()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_resumes_after_the_delivered_batches(workers: int, tmp_path: Path) -> None:
    path = Lines(tmp_path).path

    def loader() -> Any:
        return feedline.Loader(StreamDataset(GrowingFile(path), transform=number_of, idle_s=0), 4, workers=workers)

    whole = [batch.tolist() for batch in loader()]
    batches = iter(first := loader())
    found = [next(batches).tolist() for _ in range(3)]
    state = json.loads(json.dumps(first.state_dict()))
    del batches
    other = loader()
    other.load_state_dict(state)
    assert found + [batch.tolist() for batch in other] == whole


def test_a_state_saved_after_an_exception_resumes_before_the_failed_batch(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join("broken\n" if number == 5 else f"{number}\n" for number in range(9)))
    dataset = StreamDataset(GrowingFile(path), idle_s=0)
    for workers in (0, 1):
        loader = feedline.Loader(dataset, 2, workers=workers)
        batches = iter(loader)
        found = next(batches).tolist() + next(batches).tolist()
        with pytest.raises(ValueError, match="Line 6"):
            next(batches)
        state = loader.state_dict()
        del batches
        other = feedline.Loader(dataset, 2, workers=workers, on_error="skip")
        other.load_state_dict(state)
        assert found + np.concatenate(list(other)).tolist() == [0, 1, 2, 3, 4, 6, 7, 8]


class Numbers(Feed):
    """Messages that are what `make` returns for 0, 1, ..."""

    def __init__(self, count: int, make: Any = int) -> None:
        self.count = count
        self.make = make

    def subscribe(self, number: int, count: int) -> None:
        self.ready = list(range(number, self.count, count))

    def receive(self, most: int, wait_s: float) -> list[Message]:
        found, self.ready = self.ready[:3], self.ready[3:]
        return [Message(self.make(number), number) for number in found]

    def acknowledge(self, receipts: list[Any]) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_pickled_dataset_carries_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    text = pickle.dumps(StreamDataset(Numbers(8), idle_s=0))
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert list(pickle.loads(text)) == [1, 3, 5, 7]


class Growing:
    """Changes its argument, and fails on some calls."""

    def __init__(self, *fails: int) -> None:
        self.fails = fails
        self.calls = 0

    def __call__(self, sample: list[int]) -> int:
        sample.append(1)
        self.calls += 1
        if self.calls in self.fails:
            raise OSError("torn")
        return len(sample) * 100 + sample[0]


@pytest.mark.parametrize("acknowledge", ["consumed", "received"])
def test_a_retried_message_is_unchanged(acknowledge: str) -> None:
    feed = Numbers(6, lambda number: [number])
    dataset = StreamDataset(feed, idle_s=0, transform=Growing(3, 4), acknowledge=acknowledge)
    loader = feedline.Loader(dataset, 3, on_error=Retry(2, wait_s=0))
    assert [batch.tolist() for batch in loader] == [[200, 201, 202], [203, 204, 205]]


def test_messages_that_were_put_back_are_unchanged() -> None:
    steps = iter(feedline.Loader(StreamDataset(Numbers(6, lambda n: [n]), idle_s=0, transform=Growing(3)), 3))
    with pytest.raises(OSError, match="torn"):
        next(steps)
    assert [batch.tolist() for batch in steps] == [[200, 201, 203], [204, 205]]


@pytest.mark.parametrize(
    "options",
    [{"feed": [1, 2]}, {"idle_s": -1}, {"idle_s": "1"}, {"idle_s": float("nan")}, {"acknowledge": "never"}],
)
def test_bad_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        StreamDataset(**{"feed": GrowingFile("x"), **options})
    with pytest.raises(BadState):
        iter(StreamDataset(Numbers(1))).load_state_dict({"x": 1})  # type: ignore[attr-defined]
