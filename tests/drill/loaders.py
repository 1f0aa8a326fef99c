"""Creates the dataset and the loaders of a script."""

from __future__ import annotations

from typing import Any

import feedline
from feedline.faults import Policy, Retry
from tests.drill import datasets
from tests.drill.datasets import as_list, gathered, make_sample
from tests.drill.script import SPLIT_STREAMS, Crew, Script
from tests.drill.troubles import GROWS, GROWTH_BYTES, BadSample, Troubles

_MANY_RESTARTS = 1000
"""More than there are worker deaths."""

_ON_ERROR: dict[str, Any] = {
    "raise": "raise",
    "skip": "skip",
    "skip by policy": Policy({BadSample: "skip", "UnpicklableSample": "skip", RuntimeError: "skip"}),
    "retry": Retry(attempts=3, wait_s=0.002),
    "retry, then skip": Retry(attempts=2, wait_s=0.001, then="skip"),
    "replace": "replace",
}


def sample_of(script: Script, index: int) -> Any:
    """Return a sample in the form of the dataset."""
    sample = make_sample(script.content, index)
    if script.dataset != "gathered":
        return sample
    return (sample,) if script.loader == "DataLoader" else {"rows": sample}


def build_dataset(script: Script, troubles: Troubles) -> Any:
    """Create the dataset of a round."""
    for_torch = script.loader == "DataLoader"
    if script.dataset == "gathered":
        return gathered(script.size, for_torch=for_torch)
    kind = {
        "items": datasets.Items,
        "bulk items": datasets.BulkItems,
        "stream": datasets.TorchStream if for_torch else datasets.Stream,
        "stateful stream": datasets.StatefulTorchStream if for_torch else datasets.StatefulStream,
        "split stream": datasets.SplitStream,
        "stateful split stream": datasets.StatefulSplitStream,
    }[script.dataset]
    return kind(script.content, script.size, troubles)


def _most_bytes(script: Script, crew: Crew) -> int | None:
    """Return how much memory a worker may use beyond what it inherits: less than it grows by."""
    return GROWTH_BYTES // 2 if GROWS in script.troubles.values() and crew.has_processes else None


def build_loader(script: Script, crew: Crew, dataset: Any) -> Any:
    """Create the loader of a round."""
    options: dict[str, Any] = {
        "batch_size": script.batch_size,
        "shuffle": script.shuffle,
        "drop_last": script.drop_last,
        "seed": script.loader_seed,
        "in_order": script.in_order,
        "engine": "process" if crew.engine == "portable" else crew.engine,
        "on_error": _ON_ERROR[script.on_error],
        "restarts": _MANY_RESTARTS,
        "max_memory_per_worker": _most_bytes(script, crew),
    }
    collate = as_list if script.content == "ragged" and script.batch_size is not None else None
    if script.loader == "Loader":
        return feedline.Loader(
            dataset,
            collate_fn=collate,
            workers=crew.workers,
            persistent=crew.persistent,
            prefetch=crew.prefetch,
            start_method=crew.start_method,
            timeout_s=script.timeout_s if crew.workers else 0,
            **options,
        )
    if script.is_stream:
        options["shuffle"] = None
        options["shard"] = None if script.dataset in SPLIT_STREAMS else True
    return feedline.DataLoader(
        dataset,
        collate_fn=collate,
        num_workers=crew.workers,
        persistent_workers=crew.persistent,
        prefetch_factor=crew.prefetch if crew.workers else None,
        multiprocessing_context=crew.start_method,
        timeout=script.timeout_s if crew.workers else 0,
        **options,
    )
