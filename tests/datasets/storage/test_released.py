"""Dropping the last reference to a dataset closes its connections, without waiting for the garbage collector."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import DataLoader
from feedline.datasets import JSONLines, ParquetDataset, Remote, TarDataset
from feedline.datasets.storage.http import Connections
from tests.datasets.formats.tar.writing import write_shards
from tests.datasets.storage.servers import web_server

SOURCES: dict[str, Callable[[str, Path], Any]] = {
    "tar": lambda address, folder: TarDataset(f"{address}/shard-{{000..003}}.tar", "cls"),
    "tar, cached": lambda address, folder: TarDataset(
        f"{address}/shard-{{000..003}}.tar", "cls", remote=Remote(cache=folder)
    ),
    "tar stream": lambda address, folder: TarDataset(f"{address}/shard-{{000..003}}.tar", "cls").stream(shuffle=True),
    "tar stream, cached": lambda address, folder: TarDataset(
        f"{address}/shard-{{000..003}}.tar", "cls", remote=Remote(cache=folder)
    ).stream(shuffle=True),
    "Parquet": lambda address, folder: ParquetDataset(f"{address}/rows.parquet"),
    "Parquet stream": lambda address, folder: ParquetDataset(f"{address}/rows.parquet").stream(shuffle=True),
    "lines": lambda address, folder: JSONLines(f"{address}/lines.jsonl"),
    "lines stream": lambda address, folder: JSONLines(f"{address}/lines.jsonl").stream(shuffle=True),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path, [8] * 4)
    pq.write_table(pa.table({"number": range(64)}), tmp_path / "rows.parquet", row_group_size=16)
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"number": number}) + "\n" for number in range(64)))
    return tmp_path


def open_connections() -> list[Connections]:
    return [found for found in gc.get_objects() if isinstance(found, Connections) and any(found._idle.values())]


@pytest.mark.parametrize("source", SOURCES)
def test_a_dropped_dataset_closes_its_connections(source: str, folder: Path) -> None:
    with web_server(folder) as server:
        gc.collect()
        gc.disable()
        try:
            dataset = SOURCES[source](server.address, folder / "cache")
            for _, _ in zip(range(2), DataLoader(dataset, 4, num_workers=1, engine="thread"), strict=False):
                pass
            del dataset
            for thread in threading.enumerate():
                if thread.name.startswith("feedline"):
                    thread.join(100)  # a thread that is reading releases its connection afterwards
            kept = open_connections()
        finally:
            gc.enable()
        assert not kept
