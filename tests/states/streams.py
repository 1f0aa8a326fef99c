"""Iterable datasets with and without their own states, and those of `feedline.datasets` and `feedline.text`."""

from __future__ import annotations

from typing import Any

from feedline import Loader, collate
from feedline.datasets import (
    JSONLines,
    ParquetDataset,
    SQLDataset,
    StreamDataset,
    TarDataset,
    TextLines,
    TFRecordDataset,
    mix,
)
from feedline.text import TokenDataset, tokenize
from tests.states.data import Counting, Drawing, Numbers, Parted, Resuming, encode
from tests.states.recipe import Recipe


# Any: datasets and options of all kinds.
def _threads(dataset: Any, workers: int, batch_size: int | None = 4, **options: Any) -> Loader:
    return Loader(dataset, batch_size, workers=workers, engine="thread" if workers else "inline", **options)


def _tar(**options: Any) -> Any:
    return TarDataset("shard-*.tar", "txt").stream(**options)


def _shuffled_tar() -> Any:
    return _tar(shuffle=True, buffer=12, seed=3)


def _lines(**options: Any) -> Any:
    return JSONLines("part-*.jsonl", fields=["id"], cache=False).stream(**options)


def _parquet(**options: Any) -> Any:
    return ParquetDataset("rows.parquet").stream(**options)


def _id_of(sample: Any) -> int:
    return int(bytes(sample["id"]))


def _query() -> Any:
    return SQLDataset("sqlite:///rows.db", "select * from samples", key="id").stream(size=7)


RECIPES: dict[str, Recipe] = {
    "plain": Recipe(lambda: Loader(Counting(), 4, seed=3)),
    "plain, end of an epoch": Recipe(lambda: Loader(Counting(), 4, seed=3), after=None),
    "plain, two workers then none": Recipe(
        lambda: _threads(Counting(), 2, seed=3), after=3, then=lambda: _threads(Counting(), 0, seed=3)
    ),
    "plain, two processes": Recipe(lambda: Loader(Counting(), 4, seed=3, workers=2, engine="process"), after=3),
    "plain, two ranks then three": Recipe(lambda: _threads(Counting(), 0, 2, seed=3), ranks=2, then_ranks=3),
    "plain, whole for each worker": Recipe(
        lambda: Loader(Counting(), 4, seed=3, workers=2, engine="process", shard=False), after=3
    ),
    "stateful": Recipe(lambda: Loader(Resuming(), 4)),
    "stateful, end of an epoch": Recipe(lambda: Loader(Resuming(), 4), after=None),
    "stateful, two workers": Recipe(lambda: Loader(Resuming(), 4, workers=2, engine="process", shard=False), after=3),
    "stateful iterators": Recipe(lambda: _threads(Parted(), 0)),
    "stateful iterators, two workers": Recipe(lambda: Loader(Parted(), 4, workers=2, engine="process"), after=3),
    "virtual epochs": Recipe(lambda: Loader(Counting(9), 4, seed=3), after=3, virtual=5),
    "tar": Recipe(lambda: _threads(_tar(), 0)),
    "tar, shuffled": Recipe(lambda: _threads(_shuffled_tar(), 0)),
    "tar, end of an epoch": Recipe(lambda: _threads(_shuffled_tar(), 0), after=None),
    "tar, two workers": Recipe(lambda: _threads(_shuffled_tar(), 2), after=3),
    "tar, two workers then three": Recipe(
        lambda: _threads(_shuffled_tar(), 2), after=3, then=lambda: _threads(_shuffled_tar(), 3)
    ),
    "tar, three ranks then two": Recipe(lambda: _threads(_shuffled_tar(), 0, 2), ranks=3, then_ranks=2),
    "parquet": Recipe(lambda: _threads(_parquet(), 0), needs=("pyarrow",)),
    "parquet, shuffled, two workers": Recipe(
        lambda: _threads(_parquet(shuffle=True, seed=3, window=2), 2), after=3, needs=("pyarrow",)
    ),
    "lines": Recipe(lambda: _threads(_lines(), 0)),
    "lines, two workers": Recipe(lambda: _threads(_lines(), 2), after=3),
    "lines, end of an epoch": Recipe(lambda: _threads(_lines(), 0, 16), after=None),
    "lines, shuffled": Recipe(lambda: _threads(_lines(shuffle=True, seed=3, window=2), 0)),
    "rows of a query": Recipe(lambda: _threads(_query(), 0)),
    "rows of a query, two workers": Recipe(lambda: _threads(_query(), 2), after=3),
    "rows of a query, two ranks then three": Recipe(lambda: _threads(_query(), 0), ranks=2, then_ranks=3),
    "records": Recipe(
        lambda: _threads(
            TFRecordDataset("part-*.tfrecord", transform=_id_of).stream(shuffle=True, buffer=6, seed=3), 0
        ),
        needs=("google_crc32c",),
    ),
    "messages": Recipe(lambda: _threads(StreamDataset(Numbers(), idle_s=0), 0)),
    "token blocks": Recipe(lambda: Loader(TokenDataset("tokens.bin", 8), 4, shuffle=True, seed=3)),
    "token documents": Recipe(
        lambda: Loader(TokenDataset("tokens.bin").documents, 4, shuffle=True, seed=3, collate_fn=collate.pad())
    ),
    "tokenized lines": Recipe(
        lambda: _threads(tokenize(TextLines("part-*.jsonl", cache=False).stream(), encode), 0, None), after=9
    ),
    "mixture": Recipe(lambda: Loader(mix([Drawing(20), Drawing(11)], [2, 1], size=30, seed=3), 4, seed=3)),
    "mixture of streams": Recipe(
        lambda: _threads(mix([Counting(), Resuming()], [2, 1], seed=3, repeat=True, size=40), 0, seed=3), after=4
    ),
    "mixture of shards, two workers": Recipe(
        lambda: _threads(mix([_tar(shuffle=True, buffer=5, seed=1), _tar(seed=2)], seed=3), 2), after=3
    ),
}
