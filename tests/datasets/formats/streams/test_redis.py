"""Redis streams, against a real server."""

import contextlib
import itertools
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

import feedline
from feedline.datasets import RedisStream, StreamDataset
from feedline.errors import BadOption, SourceError
from tests.datasets.formats.streams.server import Server, find_server
from tests.datasets.formats.streams.stores import number_of

_names = itertools.count()


@pytest.fixture
def stream() -> str:
    return f"stream {next(_names)}"


def dataset_of(server: Server, stream: str, **options: Any) -> StreamDataset:
    return StreamDataset(RedisStream(server.url, stream, **options), transform=number_of, idle_s=0.1)


def test_groups_each_get_everything(running: Server, stream: str) -> None:
    running.add(stream, *range(10))
    for group in ("a", "b"):
        dataset = dataset_of(running, stream, group=group)
        assert np.concatenate(list(feedline.Loader(dataset, 4))).tolist() == list(range(10))
        dataset.close()


def test_a_group_may_start_with_new_messages(running: Server, stream: str) -> None:
    running.add(stream, 1, 2)
    feed = RedisStream(running.url, stream, start="$")
    feed.subscribe(0, 1)
    running.add(stream, 3)
    assert [message.payload["number"] for message in feed.receive(10, 0)] == [b"3"]
    feed.close()


@pytest.mark.parametrize("every", [1, 10])
def test_a_state_loses_nothing_although_the_server_has_the_position(running: Server, stream: str, every: int) -> None:
    running.add(stream, *range(60))

    def loader() -> Any:
        dataset: Any = dataset_of(running, stream)
        return feedline.DataLoader(dataset, batch_size=4, num_workers=1, snapshot_every_n_steps=every)

    batches = iter(first := loader())
    found = [number for _ in range(4) for number in next(batches).tolist()]
    state = first.state_dict()
    del batches
    other = loader()
    other.load_state_dict(state)
    found += [number for batch in other for number in batch.tolist()]
    assert sorted(found) == sorted([*range(60), *range(12, 16)])  # the last batch was not acknowledged
    assert running.pending(stream) == 0


def test_messages_of_silent_readers_are_taken_over(running: Server, stream: str) -> None:
    running.add(stream, *range(10))
    lost = RedisStream(running.url, stream, consumer="lost")
    lost.subscribe(0, 1)
    assert len(lost.receive(4, 0)) == 4
    lost.close()
    patient = dataset_of(running, stream, consumer="patient")
    assert np.concatenate(list(feedline.Loader(patient, 4))).tolist() == list(range(4, 10))
    eager = dataset_of(running, stream, consumer="eager", claim_idle_s=0)
    assert np.concatenate(list(feedline.Loader(eager, 4))).tolist() == list(range(4))
    assert running.pending(stream) == 0
    patient.close()
    eager.close()


def test_pending_messages_after_a_page_of_deleted_ones_arrive(running: Server, stream: str) -> None:
    running.add(stream, *range(6))
    feed = RedisStream(running.url, stream)
    feed.subscribe(0, 1)
    received = feed.receive(6, 0)
    with running.client() as client:
        client.xdel(stream, *(message.receipt for message in received[:4]))
    feed.subscribe(0, 1)
    running.add(stream, 6)
    found = [int(message.payload["number"]) for _ in range(4) for message in feed.receive(2, 0)]
    assert found == [4, 5, 6]
    feed.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ConnectionError])
def test_messages_of_an_interrupted_read_arrive_again(
    running: Server, stream: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    running.add(stream, *range(4))
    feed = RedisStream(running.url, stream)
    feed.subscribe(0, 1)
    found = feed.receive(1, 0)
    assert found[0].payload == {"number": b"0", "ü": b"\x00\xff"}
    client = feed._client.get()
    read = client.xreadgroup

    def interrupted(*options: Any, **named: Any) -> None:
        read(*options, **named)
        monkeypatch.undo()
        raise redis.ConnectionError if error is ConnectionError else error

    monkeypatch.setattr(client, "xreadgroup", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        found += feed.receive(2, 0)
    found += [message for _ in range(3) for message in feed.receive(2, 0)]
    assert [int(message.payload["number"]) for message in found] == list(range(4))
    feed.close()


def test_a_server_restart_loses_nothing(tmp_path: Path, stream: str) -> None:
    find_server()
    server = Server(tmp_path)
    server.start()
    server.add(stream, *range(20))
    dataset = StreamDataset(RedisStream(server.url, stream), transform=number_of, idle_s=2)
    batches = iter(feedline.Loader(dataset, 4))
    found = next(batches).tolist()
    server.stop()
    starter = threading.Timer(0.3, server.start)
    starter.start()
    found += [number for batch in batches for number in batch.tolist()]
    starter.join()
    assert found == list(range(20))
    assert server.pending(stream) == 0
    dataset.close()
    server.stop()


def test_a_server_that_is_down(tmp_path: Path) -> None:
    dataset = StreamDataset(RedisStream(f"unix://{tmp_path}/none.sock", "s", retry_s=0.2), idle_s=0)
    with pytest.raises(SourceError, match=r"cannot be reached.*Nothing is lost"):
        list(feedline.Loader(dataset, 4))


def test_errors_of_the_server_are_reported(running: Server, stream: str) -> None:
    with running.client() as client:
        client.set(stream, "no stream")
    with pytest.raises(SourceError, match=r"refuses.*WRONGTYPE"):
        list(dataset_of(running, stream))


def test_the_repr_hides_secrets_and_pickles_keep_them() -> None:
    feed = RedisStream("redis://user:secret@host:1/0", "s")
    assert repr(feed) == "RedisStream('redis://***@host:1/0', 's', group='feedline')"
    assert pickle.loads(pickle.dumps(feed))._url == "redis://user:secret@host:1/0"


@pytest.mark.parametrize(
    "options",
    [{"url": ""}, {"stream": 3}, {"group": ""}, {"claim_idle_s": -1}, {"claim_idle_s": "1"}, {"retry_s": float("nan")}],
)
def test_bad_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        RedisStream(**{"url": "redis://host", "stream": "s", **options})
