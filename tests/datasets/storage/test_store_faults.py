"""A store that misbehaves: S3 behind a proxy that throttles, drops, stalls, and refuses expired credentials."""

from __future__ import annotations

import io
import os
import random
import signal
import tarfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import feedline
from feedline.datasets import Remote, TarDataset
from feedline.datasets.storage import ahead, disk_cache
from feedline.datasets.storage import blob as blobs
from feedline.datasets.storage.storage import Storage
from feedline.errors import FeedlineWarning, SourceError
from tests.datasets.storage.servers import (
    StoreProxy,
    first,
    needs_s3,
    options_for,
    refuse_old,
    s3_bucket,
    store_proxy,
)

pytestmark = [needs_s3, pytest.mark.slow]

DATA = bytes(i * 7 % 251 for i in range(100_000))


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with s3_bucket() as client:
        client.put_object(Bucket="bucket", Key="a", Body=DATA)
        yield client


@pytest.fixture
def proxy(s3: Any) -> Iterator[StoreProxy]:
    with store_proxy(s3.meta.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def storage(proxy: StoreProxy) -> Iterator[Storage]:
    storage = Storage(Remote(retries=4, timeout_s=30, storage_options=options_for(proxy)))
    yield storage
    storage.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record pauses instead of sleeping."""
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=time.monotonic)  # only here, not for the servers
    monkeypatch.setattr(blobs, "time", clock)
    return slept


def test_an_answer_that_stalls_times_out(proxy: StoreProxy) -> None:
    storage = Storage(Remote(retries=2, timeout_s=0.5, storage_options=options_for(proxy)))
    opened = storage.open("s3://bucket/a")
    proxy.fault = first(1, "stall")
    assert opened.read(0, 100_000) == DATA
    proxy.fault = first(3, "stall")
    with pytest.raises(SourceError, match="no answer within timeout_s="):
        opened.read(0, 100_000)
    storage.close()


def test_expired_credentials_are_looked_up_again(proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    asked = {name: value for name, value in options_for(proxy).items() if name not in ("key", "secret")}
    storage = Storage(Remote(retries=0, storage_options=asked))
    opened = storage.open("s3://bucket/a")
    assert opened.read(0, 3) == DATA[:3]
    proxy.fault = refuse_old
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new-key")
    assert opened.read(3, 6) == DATA[3:6]
    storage.close()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old-key")
    storage._systems.of("s3").connect()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new-key")
    assert "s3://bucket/a" in storage.listed("s3://bucket/[a]")
    storage.close()


# -- shards ---


def shard(numbers: range) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for number in numbers:
            info = tarfile.TarInfo(f"{number:04d}.txt")
            info.size = 4
            file.addfile(info, io.BytesIO(f"{number:04d}".encode()))
    return out.getvalue()


SHARDS = 24
"""More shards than the store lists in one answer through the proxy."""


@pytest.fixture(scope="module")
def shards(s3: Any) -> None:
    whole = shard(range(3))
    for number in range(SHARDS):
        s3.put_object(Bucket="bucket", Key=f"many/{number:05d}.tar", Body=whole)
    for number in range(8):
        s3.put_object(Bucket="bucket", Key=f"few/{number}.tar", Body=shard(range(10 * number, 10 * number + 10)))


@pytest.mark.usefixtures("shards")
def test_listings_of_several_pages_are_in_order(storage: Storage, proxy: StoreProxy) -> None:
    proxy.fault = first(2, "SlowDown")
    found = storage.listed("s3://bucket/many/*.tar")
    assert list(found) == [f"s3://bucket/many/{number:05d}.tar" for number in range(SHARDS)]
    assert sum("list-type=2" in path for _, path in proxy.asked) >= 2 + 3, "two failed requests and three pages"
    with pytest.raises(SourceError, match="No object fits"):
        storage.listed("s3://bucket/none/*.tar")


@pytest.mark.usefixtures("shards", "pauses")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["stream", "random"])
def test_everything_goes_wrong_at_once(
    how: str, seed: int, proxy: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With throttling, errors, drops, a small cache and a worker killed with SIGKILL, each sample comes once."""
    monkeypatch.setattr(disk_cache, "PIECE_BYTES", 2000)
    monkeypatch.setattr(ahead, "REMOTE_CHUNK", 2000)
    dice, lock = random.Random(seed), threading.Lock()

    def fault(method: str, path: str, headers: Any) -> str | None:
        with lock:
            chosen = dice.choices([None, "reset", "SlowDown", "InternalError"], [6, 2, 1, 1])[0]
        return chosen if method == "GET" and "few/" in path else None

    dataset = TarDataset(
        "s3://bucket/few/*.tar",
        "txt",
        remote=Remote(storage_options=options_for(proxy), retries=60, cache=tmp_path / "shards", cache_bytes=12_000),
        cache=tmp_path / "index",
    )
    source: Any = dataset.stream(shuffle=True, seed=seed) if how == "stream" else dataset
    options: dict[str, Any] = {} if how == "stream" else {"shuffle": True, "seed": seed}
    loader = feedline.DataLoader(source, 4, num_workers=2, collate_fn=list, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeedlineWarning)  # about the worker that is replaced
        expected = [text for batch in loader for text in batch]
        loader.set_epoch(0)
        proxy.fault = fault
        batches, found = iter(loader), list[str]()
        for number, batch in enumerate(batches):
            found += batch
            if number == 3:
                os.kill(batches.worker_pids[0], signal.SIGKILL)
    assert sorted(found) == sorted(expected) == [f"{number:04d}" for number in range(80)]
    assert dataset.remote.cache_stats().held <= 12_000
    loader.close()
    dataset.close()
