"""Shards that stay with their rank, and caches that are too small for all of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedline import DataLoader
from feedline.datasets import Remote, TarDataset
from feedline.datasets.storage import ahead, disk_cache
from feedline.datasets.storage.blob import RetryPolicy
from feedline.errors import BadOption
from tests.datasets.formats.tar.writing import write_shards
from tests.datasets.storage.servers import WebServer, web_server

SHARDS = 24


@pytest.mark.parametrize(
    ("here", "sticky"), [([6, 2], None), ([4, 4], True), ([1] * 8, True), ([8], False), ([5, 2, 1], True)]
)
def test_ranks_agree_on_the_order_for_any_number_of_ranks_per_machine(
    here: list[int], sticky: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path, [2] * 19)
    found, rank = list[int](), 0
    monkeypatch.setenv("WORLD_SIZE", "8")
    for count in here:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(count))
        for _ in range(count):
            monkeypatch.setenv("RANK", str(rank))
            rank += 1
            dataset = TarDataset(shards, "cls", remote=Remote(cache=tmp_path / "cache"))
            found += list(dataset.stream(shuffle=True, seed=1, sticky=sticky))
    assert sorted(found) == list(range(38))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(ahead, "REMOTE_CHUNK", 20_000)
    monkeypatch.setattr(disk_cache, "PIECE_BYTES", 20_000)
    monkeypatch.setattr("feedline.datasets.storage.http._HEAD", 1000)
    monkeypatch.setattr(RetryPolicy, "wait", lambda self, attempt: None)
    write_shards(tmp_path, [8] * SHARDS)
    with web_server(tmp_path) as server:
        yield server


def pattern(server: WebServer) -> str:
    return f"{server.address}/shard-{{000..{SHARDS - 1:03d}}}.tar"


def fetched(server: WebServer) -> int:
    """Return how many bytes were read, without those that opening a shard fetches."""
    found = sum(request.stop - request.start for request in server.requests if request.stop - request.start > 1000)
    server.requests.clear()
    return found


@pytest.mark.slow
def test_a_machine_with_sticky_shards_fetches_them_once(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are two machines with one rank each, and each cache has room for half of the shards."""
    total = sum(path.stat().st_size for path in tmp_path.glob("*.tar"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    costs = {}
    for sticky in (True, False):
        costs[sticky] = [0, 0, 0]
        for epoch in range(3):
            for rank in range(2):
                monkeypatch.setenv("RANK", str(rank))
                folder = tmp_path / f"cache-{sticky}-{rank}"
                dataset = TarDataset(pattern(server), "cls", remote=Remote(cache=folder, cache_bytes=int(total * 0.52)))
                stream = dataset.stream(shuffle=True, seed=1, sticky=sticky)
                stream.set_epoch(epoch)
                assert len(list(stream)) == 4 * SHARDS
                costs[sticky][epoch] += fetched(server)
                stream.close()
                dataset.close()
    assert costs[True][0] == costs[False][0] > 0.9 * total
    assert costs[True][1:] == [0, 0]
    assert min(costs[False][1:]) > 0.1 * total


def test_a_bounded_cache_fetches_as_little_as_possible(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for 30 %, the second epoch fetches 70 %; no cache could fetch less."""
    monkeypatch.setattr(disk_cache, "_FLUSH_BYTES", 1)
    total = sum(path.stat().st_size for path in tmp_path.glob("*.tar"))
    dataset = TarDataset(pattern(server), "cls", remote=Remote(cache=tmp_path / "cache", cache_bytes=int(total * 0.3)))
    loader = DataLoader(dataset.stream(shuffle="shards", seed=1), 4, num_workers=2, engine="thread")
    costs = []
    for _ in range(2):
        assert sorted(label for batch in loader for label in batch.tolist()) == list(range(8 * SHARDS))
        costs.append(fetched(server) / total)
    assert 0.9 < costs[0] <= 1.01
    assert 0.6 < costs[1] < 0.8, costs
    stats = dataset.remote.cache_stats()
    assert stats.held <= total * 0.3
    loader.close()
    dataset.close()


def test_a_state_is_resumed_by_another_number_of_ranks(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sticky ranks stop in the middle and three continue. Every sample comes once."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    found, states = list[int](), dict[int, Any]()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        stream = TarDataset(pattern(server), "cls").stream(shuffle=True, buffer=20, seed=1, sticky=True)
        one = iter(stream)
        found += [next(one) for _ in range(30 + rank)]
        states[rank] = json.loads(json.dumps(one.state_dict()))
        stream.close()
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    stream = TarDataset(pattern(server), "cls").stream(shuffle=True, buffer=20, seed=1, sticky=True)
    for rank, state in enumerate(stream.reshard(states, 2, 3, 0)):
        monkeypatch.setenv("RANK", str(rank))
        one = iter(stream)
        one.load_state_dict(state)
        found += list(one)
    assert sorted(found) == list(range(8 * SHARDS))
    stream.close()


def test_shuffling_shards_does_not_shuffle_their_samples(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [8] * 6)
    labels = list(TarDataset(shards, "cls").stream(shuffle="shards", seed=2))
    assert labels != sorted(labels)
    assert all(labels[at : at + 8] == sorted(labels[at : at + 8]) for at in range(0, 48, 8))
    with pytest.raises(BadOption, match=r"shuffle='full'.*give the dataset itself to the loader"):
        TarDataset(shards, "cls").stream(shuffle="full")
    shutil.rmtree(tmp_path, ignore_errors=True)
