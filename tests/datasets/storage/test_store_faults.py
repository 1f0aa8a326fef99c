"""A store that misbehaves: S3 behind a proxy that throttles, drops, stalls, and refuses expired credentials."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import tarfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import feedline
from feedline.datasets import Remote, TarDataset
from feedline.datasets.storage import ahead, disk_cache
from feedline.datasets.storage import blob as blobs
from feedline.datasets.storage.storage import Storage
from feedline.errors import FeedlineWarning, SourceChanged, SourceError
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


def test_pauses_are_longer_if_a_store_throttles(storage: Storage, proxy: StoreProxy, pauses: list[float]) -> None:
    opened = storage.open("s3://bucket/a")
    for fault in ("InternalError", "SlowDown"):
        proxy.fault = first(3, fault)
        assert opened.read(10, 70_000) == DATA[10:70_000]
    assert len(pauses) == 6
    failed, throttled = sum(pauses[:3]), sum(pauses[3:])
    assert throttled > 2 * failed, "8 times as long, plus or minus half"
    proxy.fault = first(9, "SlowDown")
    with pytest.raises(SourceError, match=r"s3://bucket/a cannot be read at byte 0: .*tried 5 times"):
        opened.read(0, 5)


def test_a_truncated_answer_is_resumed(storage: Storage, proxy: StoreProxy) -> None:
    opened = storage.open("s3://bucket/a")
    proxy.fault = first(2, "reset")
    proxy.ranges.clear()
    assert opened.read(3, 90_000) == DATA[3:90_000]
    sizes = [size for _, size in proxy.ranges]
    assert sizes[0] == 89_997
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 30_000, "bytes that had arrived are not requested again"


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


# Any: a dataset or a stream.
HOW: dict[str, Callable[[TarDataset], Any]] = {"stream": TarDataset.stream, "random": lambda dataset: dataset}


@pytest.mark.usefixtures("shards")
@pytest.mark.parametrize("how", HOW)
def test_a_listing_saves_one_request_per_shard_for_its_version(how: str, proxy: StoreProxy, tmp_path: Path) -> None:
    def heads(shards: str) -> int:
        proxy.asked.clear()
        dataset = TarDataset(
            shards, "txt", remote=Remote(storage_options=options_for(proxy)), cache=tmp_path / "indices"
        )
        assert list(HOW[how](dataset)) == [f"{number:04d}" for number in range(80)]
        dataset.close()
        return sum(method == "HEAD" for method, _ in proxy.asked)

    assert heads("s3://bucket/few/{0..7}.tar") >= 8
    for listed in ("s3://bucket/few/*.tar", "s3://bucket/few/"):
        assert heads(listed) == 0


@pytest.mark.parametrize("how", HOW)
def test_a_shard_that_changed_after_it_was_listed_is_detected(
    how: str, s3: Any, proxy: StoreProxy, tmp_path: Path
) -> None:
    for number in range(2):
        s3.put_object(Bucket="bucket", Key=f"changing/{number}.tar", Body=shard(range(10)))
    dataset = TarDataset(
        "s3://bucket/changing/*.tar",
        "txt",
        remote=Remote(storage_options=options_for(proxy)),
        cache=tmp_path / "indices",
    )
    s3.put_object(Bucket="bucket", Key="changing/1.tar", Body=shard(range(10, 20)))  # of the same size
    with pytest.raises(SourceChanged, match=r"s3://bucket/changing/1\.tar was changed"):
        list(HOW[how](dataset))
    dataset.close()


@pytest.mark.usefixtures("shards")
def test_the_order_does_not_depend_on_faults(proxy: StoreProxy, pauses: list[float]) -> None:
    def texts() -> list[str]:
        table = TarDataset("s3://bucket/few/*.tar", "txt", remote=Remote(storage_options=options_for(proxy)))
        with contextlib.closing(table.stream(shuffle=True, seed=5, buffer=7)) as stream:
            return [text for batch in feedline.Loader(stream, 4) for text in batch]

    expected = texts()
    assert sorted(expected) == [f"{number:04d}" for number in range(80)]
    faults = iter(["SlowDown", None, "reset", None, None, "InternalError"] * 100)
    proxy.fault = lambda method, path, headers: next(faults) if method == "GET" and "few/" in path else None
    assert texts() == expected
    assert pauses


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
