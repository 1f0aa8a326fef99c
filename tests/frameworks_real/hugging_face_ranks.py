"""One rank that reads a streaming dataset of Hugging Face in several ways, and reports its samples."""

from __future__ import annotations

import json
import os
from typing import Any

import datasets
from datasets.distributed import split_dataset_by_node

import feedline
from tests.frameworks_real.deliveries import count_deliveries, delivered

SIZE = 36
SHARDS = 6


def numbers(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["number"]]


def main() -> None:
    count_deliveries()
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    whole = datasets.Dataset.from_dict({"number": list(range(SIZE))}).to_iterable_dataset(num_shards=SHARDS)
    own = split_dataset_by_node(whole, rank, count)
    answers: dict[str, Any] = {}
    for workers in (0, 2):
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
        loader: Any = feedline.DataLoader(own, 2, **options)
        answers[f"DataLoader {workers}"] = numbers(loader)
        answers[f"Loader {workers}"] = numbers(feedline.Loader(whole, 2, workers=workers))
        answers[f"Loader by node {workers}"] = numbers(feedline.Loader(own, 2, workers=workers))
        batches = iter(loader)
        got = numbers([next(batches), next(batches)])
        state = loader.state_dict()
        del batches
        loader = feedline.DataLoader(own, 2, **options)
        loader.load_state_dict(state)
        answers[f"resumed {workers}"] = got + numbers(loader)
        state = loader.state_dict()
        answers[f"the epoch after {workers}"] = numbers(loader)
        loader = feedline.DataLoader(own, 2, **options)
        loader.load_state_dict(state)
        answers[f"resumed at the end {workers}"] = numbers(loader)
    answers["iterators"] = dict(delivered)
    wrong: list[tuple[str, Any, Any, Any]] = [  # loaders and datasets of any class
        ("twice", feedline.DataLoader, whole, True),
        ("twice by node", feedline.DataLoader, own, "pad"),
        ("tail", feedline.Loader, own, "exact"),
    ]
    for name, kind, dataset, shard in wrong:
        try:
            kind(dataset, 2, shard=shard)
        except feedline.errors.BadOption as exc:
            answers[name] = str(exc)
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
