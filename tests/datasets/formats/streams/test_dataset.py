"""Messages as samples: none is lost, and none is delivered again after it was consumed."""

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
import torch

import feedline
from examples.growing_file import GrowingFile
from feedline.datasets import StreamDataset
from feedline.datasets.formats.streams import Feed, Message
from feedline.errors import BadOption, SourceError
from feedline.faults import Retry
from feedline.types import EngineName

pytestmark = pytest.mark.sample(5)

ENGINES = [("inline", 0), ("thread", 2), ("process", 2)]
engines = pytest.mark.parametrize(("engine", "workers"), ENGINES)


class ListFeed(Feed):
    """Numbers, split round-robin; each process writes the numbers it acknowledges to a file."""

    def __init__(self, count: int, log: Path) -> None:
        self.count = count
        self.log = log
        self.ready: list[int] = []
        self.refuses = 0

    def subscribe(self, number: int, count: int) -> None:
        self.ready = list(range(number, self.count, count))

    def receive(self, most: int, wait_s: float) -> list[Message]:
        found, self.ready = self.ready[:3], self.ready[3:]
        return [Message(number, number) for number in found]

    def acknowledge(self, receipts: list[Any]) -> None:
        if self.refuses:
            self.refuses -= 1
            raise SourceError("the server is away")
        with open(self.log, "a") as file:
            file.writelines(f"{os.getpid()} {receipt}\n" for receipt in receipts)

    def close(self) -> None:
        pass


def acknowledged(log: Path) -> list[int]:
    return [int(line.split()[1]) for line in log.read_text().splitlines()] if log.exists() else []


@engines
def test_every_message_comes_once_and_is_acknowledged(engine: EngineName, workers: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    dataset = StreamDataset(ListFeed(50, log), idle_s=0)
    found = np.concatenate(list(feedline.Loader(dataset, 4, workers=workers, engine=engine))).tolist()
    assert sorted(found) == list(range(50))
    assert acknowledged(log) == found
    assert {int(line.split()[0]) for line in log.read_text().splitlines()} == {os.getpid()}


@engines
def test_a_batch_is_acknowledged_when_the_next_one_is_requested(
    engine: EngineName, workers: int, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    loader = feedline.Loader(StreamDataset(ListFeed(60, log), idle_s=0), 4, workers=workers, engine=engine)
    done: list[int] = []
    for batch in itertools.islice(loader, 5):
        assert acknowledged(log) == done  # prefetched batches are not acknowledged
        done += batch.tolist()
    del loader
    assert acknowledged(log) == done[:-4]


def test_failed_acknowledgements_are_repeated(tmp_path: Path) -> None:
    log = tmp_path / "log"
    feed = ListFeed(12, log)
    batches = iter(feedline.Loader(StreamDataset(feed, idle_s=0), 4))
    next(batches)
    feed.refuses = 2
    for _ in range(2):
        with pytest.raises(SourceError, match="away"):
            next(batches)
    assert next(batches).tolist() == [4, 5, 6, 7]
    assert acknowledged(log) == [0, 1, 2, 3]


def test_skipped_samples_are_acknowledged_with_their_batch(tmp_path: Path) -> None:
    def refuse(number: int) -> int:
        if number % 5 == 0:
            raise ValueError(number)
        return number

    log = tmp_path / "log"
    loader = feedline.Loader(StreamDataset(ListFeed(20, log), transform=refuse, idle_s=0), 4, on_error="skip")
    found = np.concatenate(list(loader)).tolist()
    assert found == [number for number in range(20) if number % 5]
    assert acknowledged(log) == list(range(20))


def test_a_message_that_raised_is_acknowledged_only_if_the_loop_continues(tmp_path: Path) -> None:
    def refuse(number: int) -> int:
        if number == 5:
            raise ValueError(number)
        return number

    log = tmp_path / "log"
    batches = iter(feedline.Loader(StreamDataset(ListFeed(12, log), transform=refuse, idle_s=0), 4))
    next(batches)
    with pytest.raises(ValueError, match="5"):
        next(batches)
    assert acknowledged(log) == [0, 1, 2, 3]
    assert next(batches).tolist() == [4, 6, 7, 8]
    assert acknowledged(log) == [0, 1, 2, 3]
    next(batches)
    assert sorted(acknowledged(log)) == list(range(9))


@engines
def test_the_other_messages_of_a_failed_batch_are_delivered(engine: EngineName, workers: int, tmp_path: Path) -> None:
    path, offsets = tmp_path / "log.jsonl", tmp_path / "offsets"
    path.write_text("".join("broken\n" if number in (5, 12, 13) else f"{number}\n" for number in range(20)))
    dataset = StreamDataset(GrowingFile(path, offsets=offsets), idle_s=0)
    batches = iter(feedline.Loader(dataset, 3, workers=workers, engine=engine))
    found: list[int] = []
    errors = 0
    while True:
        try:
            found += next(batches).tolist()
        except StopIteration:
            break
        except ValueError:
            errors += 1
    assert errors == 3
    assert sorted(found) == [number for number in range(20) if number not in (5, 12, 13)]
    assert list(feedline.Loader(dataset, 3, workers=workers, engine=engine)) == []


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


def test_a_batch_that_cannot_be_collated_is_not_retried(tmp_path: Path) -> None:
    def collate(numbers: list[int]) -> list[int]:
        if 5 in numbers:
            raise ValueError(numbers)
        return numbers

    dataset = StreamDataset(ListFeed(12, tmp_path / "log"), idle_s=0)
    batches = iter(feedline.Loader(dataset, 4, collate_fn=collate))
    assert next(batches) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="5"):
        next(batches)
    assert next(batches) == [8, 9, 10, 11]


def test_the_drop_in_loader_acknowledges_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    dataset: Any = StreamDataset(ListFeed(30, log), idle_s=0)
    loader: Any = feedline.DataLoader(dataset, batch_size=4, num_workers=2)
    found = torch.cat(list(loader)).tolist()
    assert sorted(found) == list(range(30))
    assert acknowledged(log) == found


def test_other_loaders_acknowledge_what_they_receive(tmp_path: Path) -> None:
    log = tmp_path / "log"
    dataset: Any = StreamDataset(ListFeed(30, log), idle_s=0, acknowledge="received")
    found = torch.cat(list(torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2))).tolist()
    assert sorted(found) == list(range(30)) == sorted(acknowledged(log))


def test_an_endless_stream_ends_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("1\n2\n")
    dataset = StreamDataset(GrowingFile(path))
    loader = feedline.Loader(dataset, 2, workers=2, engine="thread", in_order=False)
    batches = iter(loader)
    closer = threading.Timer(0.3, dataset.close)
    closer.start()
    assert sorted(number for batch in batches for number in batch.tolist()) == [1, 2]
    closer.join()


def _consume(path: Path, offsets: Path, stop_after: int, found: Any) -> None:
    dataset = StreamDataset(GrowingFile(path, offsets=offsets), idle_s=0)
    for step, batch in enumerate(feedline.Loader(dataset, 4, workers=1)):
        found.put(batch.tolist())
        if step == stop_after:
            found.close()
            found.join_thread()
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_crash_loses_nothing(tmp_path: Path) -> None:
    """It repeats only the batch that the loop was processing."""
    path, offsets = tmp_path / "log.jsonl", tmp_path / "offsets"
    path.write_text("".join(f"{number}\n" for number in range(40)))
    context = multiprocessing.get_context("fork")
    runs = []
    for stop_after in (2, 3, 1000):
        queue = context.Queue()
        program = context.Process(target=_consume, args=(path, offsets, stop_after, queue))
        program.start()
        found = []
        while program.is_alive() or not queue.empty():
            try:
                found += queue.get(timeout=0.1)
            except Exception:  # nothing yet
                continue
        program.join()
        program.close()
        queue.close()
        queue.join_thread()
        runs.append(found)
    assert runs == [list(range(12)), list(range(8, 24)), list(range(20, 40))]


def test_a_state_resumes_after_the_delivered_batches(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{json.dumps({'x': number})}\n" for number in range(40)))
    for workers in (0, 2):
        loader = feedline.Loader(StreamDataset(GrowingFile(path), idle_s=0), 4, workers=workers)
        whole = [batch["x"].tolist() for batch in loader]
        batches = iter(loader)
        first = [next(batches)["x"].tolist() for _ in range(3)]
        state = json.loads(json.dumps(loader.state_dict()))
        del batches
        other = feedline.Loader(StreamDataset(GrowingFile(path), idle_s=0), 4, workers=workers)
        other.load_state_dict(state)
        assert first + [batch["x"].tolist() for batch in other] == whole


class FolderFeed(Feed):
    """Numbers whose server tracks which are done, with a file in a folder for each."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count = count
        self.folder = folder
        self.ready: list[int] = []

    def subscribe(self, number: int, count: int) -> None:
        self.ready = [n for n in range(number, self.count, count) if not (self.folder / str(n)).exists()]

    def receive(self, most: int, wait_s: float) -> list[Message]:
        found, self.ready = self.ready[:most], self.ready[most:]
        return [Message(number, number) for number in found]

    def acknowledge(self, receipts: list[Any]) -> None:
        for number in receipts:
            (self.folder / str(number)).touch()

    def close(self) -> None:
        pass


def _folder_loader(folder: Path, every: int, transform: Any = None) -> Any:
    dataset: Any = StreamDataset(FolderFeed(60, folder), idle_s=0, transform=transform)
    return feedline.DataLoader(dataset, batch_size=4, num_workers=1, snapshot_every_n_steps=every)


@pytest.mark.parametrize("every", [1, 10])
def test_resuming_a_feed_whose_server_tracks_the_position_loses_nothing(every: int, tmp_path: Path) -> None:
    loader = _folder_loader(tmp_path, every)
    batches = iter(loader)
    found = [number for _ in range(4) for number in next(batches).tolist()]
    state = loader.state_dict()
    del batches
    other = _folder_loader(tmp_path, every)
    other.load_state_dict(state)
    found += torch.cat(list(other)).tolist()
    assert sorted(found) == sorted([*range(60), *range(12, 16)])  # the last batch was not acknowledged


@pytest.mark.parametrize("every", [1, 10])
def test_a_killed_worker_loses_nothing_if_the_server_tracks_the_position(every: int, tmp_path: Path) -> None:
    (tmp_path / "done").mkdir()
    loader = _folder_loader(tmp_path / "done", every, Killing(tmp_path / "flag", 30))
    with pytest.warns(feedline.errors.WorkerWarning):
        found = torch.cat(list(loader)).tolist()
    assert set(found) == set(range(60))


def test_a_pickled_dataset_carries_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    text = pickle.dumps(StreamDataset(ListFeed(8, tmp_path / "log"), idle_s=0))
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert list(pickle.loads(text)) == [1, 3, 5, 7]


class Killing:
    def __init__(self, flag: Path, at: int = 13) -> None:
        self.flag = flag
        self.at = at

    def __call__(self, number: int) -> int:
        if number == self.at and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{number}\n" for number in range(40)))
    dataset = StreamDataset(GrowingFile(path), transform=Killing(tmp_path / "flag"), idle_s=0)
    with pytest.warns(feedline.errors.WorkerWarning):
        found = np.concatenate(list(feedline.Loader(dataset, 4, workers=2))).tolist()
    assert sorted(found) == list(range(40))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StreamDataset([1, 2]), "not a feed"),  # type: ignore[arg-type]
        (lambda: StreamDataset(GrowingFile("x"), idle_s=-1), "not a duration"),
        (lambda: StreamDataset(GrowingFile("x"), idle_s="1"), "not a duration"),  # type: ignore[arg-type]
        (lambda: StreamDataset(GrowingFile("x"), idle_s=float("nan")), "not a duration"),
        (lambda: StreamDataset(GrowingFile("x"), acknowledge="never"), "neither"),
        (lambda: StreamDataset(GrowingFile("x"), transform=3), "transform"),  # type: ignore[arg-type]
    ],
)
def test_bad_options_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make()


def test_the_repr() -> None:
    assert (
        repr(StreamDataset(GrowingFile("/a/b.jsonl"), idle_s=2)) == "StreamDataset(GrowingFile('/a/b.jsonl'), idle_s=2)"
    )


class DictFeed(ListFeed):
    """Messages that are dicts, like those of Redis."""

    def receive(self, most: int, wait_s: float) -> list[Message]:
        return [Message({"x": [message.payload]}, message.receipt) for message in super().receive(most, wait_s)]


class Growing:
    """Changes its argument, and fails on some calls."""

    def __init__(self, *fails: int) -> None:
        self.fails = fails
        self.calls = 0

    def __call__(self, sample: dict[str, list[int]]) -> int:
        sample["x"].append(1)
        self.calls += 1
        if self.calls in self.fails:
            raise OSError("torn")
        return len(sample["x"]) * 100 + sample["x"][0]


@pytest.mark.parametrize("acknowledge", ["consumed", "received"])
def test_a_retried_message_is_unchanged(acknowledge: str, tmp_path: Path) -> None:
    feed = DictFeed(6, tmp_path / "log")
    dataset = StreamDataset(feed, idle_s=0, transform=Growing(3, 4), acknowledge=acknowledge)
    loader = feedline.Loader(dataset, 3, on_error=Retry(2, wait_s=0))
    assert [batch.tolist() for batch in loader] == [[200, 201, 202], [203, 204, 205]]


def test_messages_that_were_put_back_are_unchanged(tmp_path: Path) -> None:
    dataset = StreamDataset(DictFeed(6, tmp_path / "log"), idle_s=0, transform=Growing(3))
    steps = iter(feedline.Loader(dataset, 3))
    with pytest.raises(OSError, match="torn"):
        next(steps)
    assert [batch.tolist() for batch in steps] == [[200, 201, 203], [204, 205]]


def test_a_message_that_cannot_be_copied_is_passed_on_itself(tmp_path: Path) -> None:
    class LockFeed(ListFeed):
        def receive(self, most: int, wait_s: float) -> list[Message]:
            return [Message((threading.Lock(), m.payload), m.receipt) for m in super().receive(most, wait_s)]

    dataset = StreamDataset(LockFeed(3, tmp_path / "log"), idle_s=0, transform=lambda payload: payload[1])
    assert list(dataset) == [0, 1, 2]
