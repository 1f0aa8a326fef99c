"""Every kind of source in a real torch process group: ranks split the samples, and each of them resumes."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import sqlite3
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from examples.growing_file import GrowingFile
from feedline.datasets import (
    ArrayDataset,
    ParquetDataset,
    RedisStream,
    SQLDataset,
    StreamDataset,
    TarDataset,
    mix,
)
from feedline.samplers import DistributedSampler
from feedline.system.ranks import Tail
from tests.datasets.formats.streams.server import Server, find_server, started_server

distributed = pytest.importorskip("torch.distributed")

COUNT = 103
"""A prime, so that no division comes out even."""
BATCH = 4
EVERY = list(range(COUNT))


class Numbers:
    """The dataset to pack."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"x": int(range(COUNT)[index])}


class Counting:
    """An iterable dataset that ignores workers and ranks."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT))


def _number(sample: Any) -> int:
    return int(sample["number"])


# -- the ranks ---


def _run(rank: int, ranks: int, folder: Path, program: Callable[..., Any], arguments: Any) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    try:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks)
        result = program(rank, *arguments)
        distributed.barrier()
        distributed.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        os._exit(1)
    (folder / f"{rank}.result").write_bytes(pickle.dumps(result))
    os._exit(0)


def in_group(ranks: int, folder: Path, program: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function in every rank of a group, and return the results."""
    context = multiprocessing.get_context("fork")
    folder.mkdir()
    processes = [
        context.Process(target=_run, args=(rank, ranks, folder, program, arguments), name=f"rank {rank}")
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    errors = [path.read_text() for path in sorted(folder.glob("*.error"))]
    assert not errors, "\n".join(errors)
    assert [process.exitcode for process in processes] == [0] * ranks
    for process in processes:
        process.close()
    return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(ranks)]


def numbers(batch: Any) -> list[int]:
    values = batch["x"] if isinstance(batch, dict) else batch
    found: list[int] = np.asarray(values).tolist()
    return found


def read_and_resume(rank: int, make: Callable[[Path, dict[str, Any]], Any], where: Path, how: dict[str, Any]) -> Any:
    """Return all batches of a rank, and those that it reads when it resumes after two."""
    loader = make(where, how)
    batches = iter(loader)
    first = [numbers(next(batches)) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    found = first + [numbers(batch) for batch in batches]
    other = make(where, how)
    other.load_state_dict(state)
    resumed = first + [numbers(batch) for batch in other]
    for one in (loader, other):
        if hasattr(one.dataset, "close"):
            one.dataset.close()
    return found, resumed


# -- the sources ---


def _map(where: Path, how: dict[str, Any], tail: Tail = "pad") -> Any:
    dataset = ArrayDataset(np.arange(COUNT))
    return feedline.Loader(dataset, BATCH, sampler=DistributedSampler(dataset, seed=3, tail=tail), **how)


def _map_exact(where: Path, how: dict[str, Any]) -> Any:
    return _map(where, how, "exact")


def _map_torch(where: Path, how: dict[str, Any]) -> Any:
    from torch.utils.data import DistributedSampler as TorchSampler

    dataset: Any = ArrayDataset(np.arange(COUNT))
    options = {"num_workers": how.get("workers", 0), "multiprocessing_context": how.get("start_method")}
    return feedline.DataLoader(dataset, BATCH, sampler=TorchSampler(dataset, seed=3), **options)


def _tar(where: Path, how: dict[str, Any]) -> Any:
    shards = str(where / "tar" / "shard-*.tar")
    dataset = TarDataset(shards, fields={"x": "x.cls"}).stream(shuffle=True, buffer=10, seed=3)
    return feedline.Loader(dataset, BATCH, **how)


def _parquet(where: Path, how: dict[str, Any], tail: Tail = "pad") -> Any:
    dataset = ParquetDataset(where / "all.parquet", "x").stream(shuffle=True, seed=3)
    return feedline.Loader(dataset, BATCH, shard=tail, **how)


def _parquet_exact(where: Path, how: dict[str, Any]) -> Any:
    return _parquet(where, how, "exact")


def _sql(where: Path, how: dict[str, Any]) -> Any:
    dataset = SQLDataset(f"sqlite:///{where}/all.db", "SELECT x FROM numbers", key="x", fields="x").stream(size=7)
    return feedline.Loader(dataset, BATCH, **how)


def _iterable(where: Path, how: dict[str, Any]) -> Any:
    return feedline.Loader(Counting(), BATCH, **how)


def _lines(where: Path, how: dict[str, Any]) -> Any:
    return feedline.Loader(StreamDataset(GrowingFile(where / "lines"), idle_s=0), BATCH, **how)


SOURCES: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    "map": _map,
    "map, exact": _map_exact,
    "map, torch's sampler": _map_torch,
    "tar": _tar,
    "parquet": _parquet,
    "parquet, exact": _parquet_exact,
    "sql": _sql,
    "iterable": _iterable,
    "lines": _lines,
}
EQUAL = {"map", "map, torch's sampler", "parquet", "iterable"}
"""All ranks have equally many batches, so a few samples come twice; elsewhere every sample comes once."""


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same numbers in every store."""
    folder = tmp_path_factory.mktemp("stores")
    feedline.pack(Numbers(), folder / "tar", format="tar", samples_per_shard=15, workers=0)
    feedline.pack(Numbers(), folder / "all.parquet", workers=0)
    with contextlib.closing(sqlite3.connect(folder / "all.db")) as database, database:
        database.execute("CREATE TABLE numbers (x INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in EVERY])
    (folder / "lines").write_text("".join(f"{number}\n" for number in EVERY))
    return folder


def check(source: str, results: list[Any]) -> None:
    for found, resumed in results:
        assert resumed == found
    counts = [len(found) for found, _ in results]
    counts_by_number = Counter(number for found, _ in results for batch in found for number in batch)
    assert set(counts_by_number) == set(EVERY)
    if source in EQUAL:
        assert len(set(counts)) == 1
        assert max(counts_by_number.values()) <= 2
        assert sum(counts_by_number.values()) - COUNT < BATCH * len(results)
    else:
        assert set(counts_by_number.values()) == {1}


@pytest.mark.parametrize(
    "source",
    [
        source if source in ("map, exact", "tar", "iterable") else pytest.param(source, marks=pytest.mark.slow)
        for source in SOURCES
    ],
)
def test_two_ranks_split_the_samples(source: str, where: Path, tmp_path: Path) -> None:
    check(source, in_group(2, tmp_path / "group", read_and_resume, SOURCES[source], where, {}))


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_ranks_with_workers_split_the_samples(source: str, where: Path, tmp_path: Path) -> None:
    options = {"workers": 2, "start_method": "fork"}
    check(source, in_group(3, tmp_path / "group", read_and_resume, SOURCES[source], where, options))


# -- Redis: the next free reader gets the next message ---


@pytest.fixture(scope="module", autouse=True)
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server | None]:
    """Return a server that starts before the checks for leaks."""
    with started_server(tmp_path_factory.mktemp("r")) as server:
        yield server


def _consume(rank: int, url: str, stream: str, how: dict[str, Any]) -> Any:
    """Return what a rank consumed before it stopped, what it was processing, and what it read after resuming."""

    def loader_of() -> Any:
        return feedline.Loader(StreamDataset(RedisStream(url, stream), transform=_number, idle_s=0.3), BATCH, **how)

    loader = loader_of()
    batches = iter(loader)
    consumed = numbers(next(batches))
    held = numbers(next(batches))  # requests another batch, so that the first is acknowledged
    state = json.loads(json.dumps(loader.state_dict()))
    del batches
    loader.dataset.close()
    distributed.barrier()
    other = loader_of()
    other.load_state_dict(state)
    rest = [number for batch in other for number in numbers(batch)]
    other.dataset.close()
    return consumed, held, rest


def test_ranks_are_consumers_of_one_group(redis_server: Server | None, tmp_path: Path) -> None:
    find_server()
    assert redis_server is not None
    redis_server.add("stream", *range(400))
    results = in_group(2, tmp_path / "group", _consume, redis_server.url, "stream", {})
    consumed = [number for first, _, _ in results for number in first]
    held = {number for _, second, _ in results for number in second}
    rest = [number for _, _, third in results for number in third]
    assert len(rest) == len(set(rest))
    assert held <= set(rest)  # they were never acknowledged
    assert sorted(consumed + rest) == list(range(400))
    assert redis_server.pending("stream") == 0
    with redis_server.client() as client:
        names = {entry["name"].decode() for entry in client.xinfo_consumers("stream", "feedline")}
    assert names == {"feedline-0", "feedline-1"}


# -- mixtures ---


def _mixture(where: Path, how: dict[str, Any]) -> Any:
    shards = str(where / "tar" / "shard-*.tar")
    tar = TarDataset(shards, fields="x.cls").stream(shuffle=True, buffer=10, seed=3)
    return feedline.Loader(mix([tar, ArrayDataset(np.arange(1000, 1000 + COUNT))], seed=3), BATCH, **how)


def test_a_mixture_with_shards_is_split_once(where: Path, tmp_path: Path) -> None:
    results = in_group(2, tmp_path / "group", read_and_resume, _mixture, where, {})
    for found, resumed in results:
        assert resumed == found
    counts_by_number = Counter(number for found, _ in results for batch in found for number in batch)
    assert set(counts_by_number.values()) == {1}
    assert len(counts_by_number) > COUNT  # of twice as many: a part ends with its shards
    shares = Counter(number >= 1000 for number in counts_by_number)
    assert abs(shares[True] - shares[False]) <= 4 * 2
