"""Shards on real servers: http with dropped connections, and S3."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.datasets import Remote, TarDataset
from feedline.datasets.storage import ahead
from feedline.datasets.storage.blob import RetryPolicy
from tests.datasets.formats.tar.writing import numbered, write_shards
from tests.datasets.storage.servers import (
    Request,
    WebServer,
    web_server,
)

SIZES = (40, 25, 60)
COUNT = sum(SIZES)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each shard need many requests."""
    monkeypatch.setattr(ahead, "REMOTE_CHUNK", 20_000)
    monkeypatch.setattr("feedline.datasets.storage.http._HEAD", 1000)
    monkeypatch.setattr(RetryPolicy, "wait", lambda self, attempt: None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    write_shards(tmp_path, SIZES)
    with web_server(tmp_path) as server:
        yield server


def test_the_requests_of_a_random_batch_run_at_once(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.datasets.storage.ranges.REMOTE_GAP", 0)
    dataset = TarDataset(f"{server.address}/shard-{{000..002}}.tar", fields="cls", cache=False)
    wanted = [5, 15, 25, 35, 45, 55, 70, 80]  # beyond the bytes that opening a shard fetches
    dataset.__getitems__(wanted)  # opens the shards
    together = threading.Barrier(len(wanted), timeout=100)

    def fault(request: Request) -> None:
        together.wait()  # the barrier breaks, and with it the server, unless all requests arrive

    server.fault = fault
    assert dataset.__getitems__(wanted) == wanted
    dataset.close()


def test_connections_that_keep_dropping_lose_no_samples(server: WebServer) -> None:
    """Every other request breaks off in the middle: no sample is lost or repeated."""
    server.fault = lambda request: "drop" if request.number % 2 else None
    dataset = TarDataset(
        f"{server.address}/shard-{{000..002}}.tar", fields=("cls", "txt", "bin"), remote=Remote(retries=30)
    ).stream()
    files = dict(numbered(COUNT))
    for number, (label, text, data) in enumerate(dataset):
        assert (label, text) == (number, f"sämple {number}")
        assert data == files[f"{number:06d}.bin"]
    table = TarDataset(f"{server.address}/shard-{{000..002}}.tar", fields="cls", remote=Remote(retries=30), cache=False)
    assert table.__getitems__([99, 3, 50, 3]) == [99, 3, 50, 3]
    dataset.close()
    table.close()


def covered(server: WebServer, dataset: TarDataset, index: int) -> bool:
    """True if a request for the bytes of a sample has arrived."""
    shard = int(np.searchsorted(dataset.index.starts, index, side="right")) - 1
    fields = dataset.index.fields(shard, index - int(dataset.index.starts[shard]))
    ((start, size),) = ((offset, size) for _, name, offset, size, _ in fields if name == "bin")
    return any(
        request.path == f"shard-{shard:03d}.tar" and request.start <= start and start + size <= request.stop
        for request in list(server.requests)
    )


def test_the_next_batch_is_fetched_while_a_batch_is_transformed(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.datasets.storage.ranges.REMOTE_GAP", 0)
    batches = [list(range(first, first + 5)) for first in range(30, 60, 5)]
    waited = list[bool]()

    def transform(data: bytes) -> int:
        number = len(waited) // 5
        if number + 1 < len(batches):
            deadline = time.monotonic() + 60
            while not covered(server, dataset, batches[number + 1][-1]) and time.monotonic() < deadline:
                threading.Event().wait(0.001)
            waited.append(covered(server, dataset, batches[number + 1][-1]))
        return len(data)

    dataset = TarDataset(
        f"{server.address}/shard-{{000..002}}.tar", fields="bin", decode=False, cache=False, transform=transform
    )
    assert len(dataset) == COUNT
    server.requests.clear()
    loader = feedline.DataLoader(dataset, batch_sampler=batches, num_workers=1, engine="thread", prefetch_factor=2)
    assert len(list(loader)) == len(batches)
    assert waited == [True] * 25
    loader.close()
    dataset.close()


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_prefetched_bytes_are_not_fetched_again(
    engine: Any, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.datasets.storage.ranges.REMOTE_GAP", 0)
    dataset = TarDataset(f"{server.address}/shard-{{000..002}}.tar", fields=("cls", "bin"), cache=False)
    files = dict(numbered(COUNT))
    assert len(dataset) == COUNT
    server.requests.clear()
    order = random.Random(3).sample(range(COUNT), COUNT)
    batches = [order[first : first + 7] for first in range(0, COUNT, 7)]
    loader = feedline.DataLoader(
        dataset, batch_sampler=batches, num_workers=2, engine=engine, prefetch_factor=3, collate_fn=list
    )
    for batch in loader:
        for label, data in batch:
            assert data == files[f"{label:06d}.bin"]
    ranges = [(request.path, request.start, request.stop) for request in server.requests if request.start > 0]
    assert ranges
    assert len(set(ranges)) == len(ranges)
    loader.close()
    dataset.close()


def test_samples_that_cannot_be_prefetched_fail_when_they_are_read(server: WebServer) -> None:
    """The error belongs to the batch and names the sample, prefetched or not."""
    dataset = TarDataset(
        f"{server.address}/shard-{{000..002}}.tar", fields="cls", cache=False, remote=Remote(retries=0)
    )
    assert len(dataset) == COUNT
    server.fault = lambda request: "503" if request.path == "shard-001.tar" else None
    loader = feedline.DataLoader(dataset, 5, num_workers=1, engine="thread", on_error="skip")
    found = [label for batch in loader for label in batch.tolist()]
    assert found == [*range(40), *range(65, COUNT)]
    assert {fault.index for fault in loader.faults} == set(range(40, 65))
    loader.close()
    dataset.close()
