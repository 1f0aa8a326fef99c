"""Ranks in one process, and streams that split themselves over them."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import feedline
from feedline import Loader
from feedline.datasets import ParquetDataset, SQLDataset, TarDataset
from feedline.types import EngineName
from tests.datasets.formats.parquet.tables import write
from tests.datasets.formats.tar.writing import write_shards

SIZES = (13, 1, 20, 7, 16, 0, 9, 11)
COUNT = sum(SIZES)
BATCH = 3

# Any, throughout: datasets, loaders and states.
Make = Callable[[], Any]
Place = tuple[int, int]
"""The number of ranks, and of workers per rank."""
Steps = Callable[[int], "int | None"]
"""Maps a rank to its number of steps."""


class World:
    """Ranks that run one after the other in this process; the environment says which is current."""

    def __init__(self, make: Make, patch: pytest.MonkeyPatch, **options: Any) -> None:
        self.make = make
        self.patch = patch
        self.options = options

    def loader(self, rank: int, place: Place) -> Any:
        self.patch.setenv("RANK", str(rank))
        self.patch.setenv("WORLD_SIZE", str(place[0]))
        engine: EngineName = "thread" if place[1] else "inline"
        return Loader(self.make(), BATCH, **{"workers": place[1], "engine": engine, **self.options})

    def go(self, place: Place, state: Any, steps: Steps) -> tuple[list[list[int]], Any]:
        """Let each rank take its steps, None for all; return what each received, and their merged state."""
        found, states = self.legs(place, state, steps)
        return found, feedline.merge_states(states)

    def legs(self, place: Place, state: Any, steps: Steps) -> tuple[list[list[int]], list[Any]]:
        """Like `go`, but return the separate states of all ranks."""
        found, states = [], []
        for rank in range(place[0]):
            loader = self.loader(rank, place)
            if state is not None:
                loader.load_state_dict(state)
            found.append([int(number) for batch in itertools.islice(loader, steps(rank)) for number in batch])
            states.append(json.loads(json.dumps(loader.state_dict())))
            loader.close()
        return found, states

    def rest(self, place: Place, state: Any) -> list[int]:
        if state is not None and all(each["ended"] for each in state.get("ranks", [state])):
            return []
        return flat(self.go(place, state, lambda _: None)[0])


def flat(found: list[list[int]]) -> list[int]:
    return [number for one in found for number in one]


def sources_in(folder: Path) -> dict[str, Make]:
    """Write the same samples in several formats; return a function that opens each."""
    shards = write_shards(folder, SIZES)
    with contextlib.closing(sqlite3.connect(folder / "rows.db")) as database, database:
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, name TEXT)")
        database.executemany("INSERT INTO rows VALUES (?, ?)", [(n, f"{n * 31 % 97:03d} {n}") for n in range(COUNT)])
    write(folder / "1.parquet", pa.table({"x": np.arange(40)}), 7)
    write(folder / "2.parquet", pa.table({"x": np.arange(40, COUNT)}), 5)

    def sql(key: str) -> Any:
        address = f"sqlite:///{folder / 'rows.db'}"
        return SQLDataset(address, "SELECT * FROM rows", key=key, fields="id").stream(size=5)

    return {
        "tar": lambda: TarDataset(shards, "cls").stream(shuffle=True, buffer=8, seed=2),
        "tar, in order": lambda: TarDataset(shards, "cls").stream(),
        "tar, wide buffer": lambda: TarDataset(shards, "cls").stream(shuffle=True, buffer=1000, seed=2),
        "sql": lambda: sql("id"),
        "sql, keys that are text": lambda: sql("name"),
        "parquet": lambda: ParquetDataset(sorted(folder.glob("*.parquet")), "x").stream(shuffle=True, window=2),
    }
