"""Streams over parts of remote files (row groups, sections of lines, pieces of tokens): read-ahead and caching."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch  # noqa: F401  it keeps files open from its import on, which a test would seem to leave behind

import feedline
from feedline.datasets import JSONLines, ParquetDataset, Remote
from feedline.datasets.formats.lines import index, source
from feedline.datasets.formats.parquet import blob_file
from feedline.datasets.storage import disk_cache, ranges
from feedline.datasets.storage.disk_cache import CacheStats
from feedline.text import TokenDataset
from tests.datasets.storage.servers import Request, WebServer, web_server
from tests.text.token_files import write

PIECE = 10_000
GROUPS = 10
"""Parts per file, each as large as a piece of the cache, except row groups."""
LARGE = 3
"""Pieces per row group."""
FILES = 6
ROWS = 10
"""Samples per part."""
KINDS = {"parquet": ".parquet", "lines": ".jsonl", "tokens": ".bin"}
NEEDED = 14
"""Parts that the shuffle buffer of seed 4 holds when the first sample comes out."""
MOST_S = 60.0
"""How long to wait for an event that must happen."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(ranges, "REMOTE_GAP", 64)
    monkeypatch.setattr(blob_file, "_GAP", 64)
    monkeypatch.setattr("feedline.datasets.storage.http._HEAD", 64)
    for module in (index, source):
        monkeypatch.setattr(module, "BLOCK_BYTES", PIECE // 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files of each kind, with numbers from 0 up."""
    folder, random, per_file = tmp_path_factory.mktemp("www"), np.random.default_rng(0), GROUPS * ROWS
    for file in range(FILES):
        numbers = np.arange(file * per_file, (file + 1) * per_file)
        pads = [random.bytes(LARGE * PIECE // ROWS - 20) for _ in numbers]
        pq.write_table(
            pa.table({"x": numbers, "pad": pads}),
            folder / f"{file}.parquet",
            row_group_size=ROWS,
            use_dictionary=False,
            write_statistics=False,
        )
        lines = [
            json.dumps({"x": int(x), "pad": pad.hex()[: PIECE // ROWS - 30]})
            for x, pad in zip(numbers, pads, strict=True)
        ]
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
        tokens = np.repeat(numbers, PIECE // ROWS // 2)
        write(folder / f"{file}.bin", [tokens.tolist()], "uint16")
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[WebServer]:
    with web_server(folder) as server:
        yield server


def addresses_of(kind: str, server: WebServer) -> list[str]:
    return [f"{server.address}/{file}{KINDS[kind]}" for file in range(FILES)]


# Any: options of three classes.
def opened(kind: str, server: WebServer, home: Path, parts: int = 5, **options: Any) -> Any:
    """Open all files of a kind. By default, two windows of two parts, and one more part, fit into memory."""
    addresses = addresses_of(kind, server)
    if kind == "parquet":
        return ParquetDataset(addresses, ("x", "pad"), cache_bytes=parts * (LARGE * PIECE + 9000), **options)
    if kind == "lines":
        return JSONLines(addresses, cache=home / "index", part_bytes=PIECE, **options)
    return TokenDataset(addresses, PIECE // ROWS // 2, labels=None, cache_bytes=parts * PIECE, **options)


def number_of(sample: Any) -> int:
    if isinstance(sample, dict):
        return int(sample["x"])
    return int(sample[0])


def size_of(kind: str, server: WebServer) -> int:
    """Return the total size of all files of a kind."""
    return sum(path.stat().st_size for path in server.folder.glob(f"*{KINDS[kind]}"))


def fetched(server: WebServer) -> int:
    """Return how many bytes were requested since the last call."""
    count = sum(request.stop - request.start for request in server.requests)
    server.requests.clear()
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_cache_serves_what_it_holds(
    kind: str, server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache of 40 %, a later epoch does not fetch what the first one left there. An LRU cache would."""
    monkeypatch.setattr("feedline.datasets.formats.lines.source.CACHE_BYTES", 0)  # no blocks in memory
    size = size_of(kind, server)
    dataset = opened(kind, server, tmp_path, remote=Remote(cache=tmp_path / "cache", cache_bytes=size * 4 // 10))
    stream = dataset.stream(shuffle=True, seed=4, window=2)
    assert sorted(map(number_of, stream)) == list(range(FILES * GROUPS * ROWS))
    stream.set_epoch(1)
    fetched(server)
    assert sorted(map(number_of, stream)) == list(range(FILES * GROUPS * ROWS))
    stream.close()
    assert fetched(server) < 0.83 * size


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_pass_through_the_cache_are_counted(kind: str, server: WebServer, tmp_path: Path) -> None:
    size = size_of(kind, server)
    assert opened(kind, server, tmp_path).remote.cache_stats() == CacheStats()
    options: Any = {"remote": Remote(cache=tmp_path / "cache", cache_bytes=2 * size)}
    dataset = opened(kind, server, tmp_path, **options)
    assert len(list(dataset.stream(shuffle=True, window=2))) == FILES * GROUPS * ROWS
    first = dataset.remote.cache_stats()
    assert 0.9 * size < first.fetched <= size
    assert first.held > first.fetched, "with checksums"
    again = pickle.loads(pickle.dumps(dataset))
    assert len(list(again.stream(shuffle=True, window=2))) == FILES * GROUPS * ROWS
    second = again.remote.cache_stats()
    assert (second.held, second.fetched, second.dropped) == (first.held, first.fetched, 0)
    assert second.served - first.served >= 0.9 * size
    assert dataset.remote.cache_stats().served >= second.served, "the counts belong to the folder"
    for one in (dataset, again):
        one.close()


def bytes_without_reading_ahead(kind: str, server: WebServer, home: Path) -> int:
    """Return how many bytes the first sample of a stream fetches without room in memory to read ahead."""
    dataset = opened(kind, server, home, parts=3)
    stream = dataset.stream(shuffle=True, seed=4, window=2)
    assert len(dataset) == FILES * GROUPS * ROWS
    server.requests.clear()
    next(iter(stream))
    stream.close()
    return fetched(server)


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_window_is_fetched_while_this_one_is_used(kind: str, server: WebServer, tmp_path: Path) -> None:
    part = size_of(kind, server) // FILES // GROUPS
    ahead = NEEDED * part + part // 2
    if kind != "lines":  # lines have no option for the memory, and always read ahead
        assert bytes_without_reading_ahead(kind, server, tmp_path) <= NEEDED * part
    dataset = opened(kind, server, tmp_path)
    stream = dataset.stream(shuffle=True, seed=4, window=2)
    assert len(dataset) == FILES * GROUPS * ROWS  # this opens the files
    server.requests.clear()
    enough = threading.Event()

    def count(request: Request) -> None:
        if sum(one.stop - one.start for one in [*server.requests]) >= ahead:
            enough.set()

    server.fault = count
    iterator = iter(stream)
    first = number_of(next(iterator))
    assert enough.wait(MOST_S), "only what the first samples need was fetched"
    found = [first, *map(number_of, iterator)]
    assert sorted(found) == list(range(FILES * GROUPS * ROWS))
    assert fetched(server) < 1.2 * size_of(kind, server), "nothing is fetched twice"
    stream.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_requests_data_of_several_files_at_once(kind: str, server: WebServer, tmp_path: Path) -> None:
    dataset = opened(kind, server, tmp_path)
    firsts = [file * GROUPS * ROWS for file in range(4)]
    dataset.__getitems__(firsts)  # opens the files
    together, lock, seen = threading.Barrier(len(firsts), timeout=MOST_S), threading.Lock(), set[str]()

    def wait(request: Request) -> None:
        with lock:
            is_first = request.path not in seen
            seen.add(request.path)
        if is_first:
            together.wait()  # until a request for each file has arrived

    server.fault = wait
    found = dataset.__getitems__([first + 55 for first in firsts])
    assert [number_of(sample) for sample in found] == [first + 55 for first in firsts]
    assert not together.broken
    dataset.close()


@pytest.mark.parametrize(("kind", "engine"), [("parquet", "process"), ("lines", "thread")])
def test_workers_share_the_cache(kind: str, engine: Any, server: WebServer, tmp_path: Path) -> None:
    size = size_of(kind, server)
    dataset = opened(kind, server, tmp_path, remote=Remote(cache=tmp_path / "cache", cache_bytes=2 * size))
    stream = dataset.stream(shuffle=True, seed=4, window=2)
    loader: Any = feedline.Loader(stream, 8, workers=2, engine=engine, collate_fn=list)
    for _ in range(2):
        assert sorted(number_of(one) for batch in loader for one in batch) == list(range(FILES * GROUPS * ROWS))
    assert fetched(server) < 1.1 * size, "every piece is fetched once"
    stream.close()
