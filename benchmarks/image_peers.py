"""Other libraries that load images, as their guides advise: Grain (`grain`) and SPDL (`spdl_core`).

Both call the same function for a sample as torch's loader does, in threads or in processes, and stack NumPy arrays.
SPDL's pipeline runs in threads; instead of several processes, it uses one process with as many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks import peers
from benchmarks.peers import AHEAD
from feedline.tools.measure import rows
from feedline.tools.measure.harness import Loading


# Any, throughout: arrays, and what other libraries make.
class Arrays:
    """The samples of a dataset of tensors as arrays; a list of them for samples of several views."""

    def __init__(self, files: Dataset[Any]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)  # type: ignore[arg-type]  # torch leaves it to subclasses

    def __getitem__(self, index: Any) -> Any:
        sample = self.files[int(index)]
        return [view.numpy() for view in sample] if isinstance(sample, list) else sample.numpy()


def stacked(samples: list[Any]) -> Any:
    """Return the batch of these samples."""
    return [np.stack(views) for views in zip(*samples, strict=True)] if _has_views(samples[0]) else np.stack(samples)


def tensors(batch: Any) -> Any:
    """Return a batch as torch's loader would."""
    return [torch.from_numpy(views) for views in batch] if _has_views(batch) else torch.from_numpy(batch)


def _has_views(sample: Any) -> bool:
    return isinstance(sample, (list, tuple))


def ways(names: Iterable[str], dataset: Dataset[Any]) -> dict[str, rows.Opened]:
    """Return how each library is opened over a dataset, in processes and in threads."""
    return {
        f"{name} {engine}": partial(opened, _BATCHES[name], Arrays(dataset), engine)
        for name in names
        for engine in ("process", "thread")
    }


def opened(batches: Callable[..., Iterable[Any]], samples: Arrays, engine: str, loading: Loading) -> peers.Peer:
    size, workers = loading.batch_size, max(1, loading.workers)
    return peers.Peer(partial(batches, samples, engine, workers, size), workers, len(samples) // size, tensors)


def of_grain(samples: Arrays, engine: str, workers: int, size: int) -> Any:
    grain = peers.grain()
    shuffled = grain.MapDataset.source(samples).shuffle(seed=0)
    if engine == "thread":
        reading = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=workers * AHEAD * size)
        return shuffled.to_iter_dataset(reading).batch(size)
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=AHEAD)
    alone = grain.ReadOptions(num_threads=1, prefetch_buffer_size=size)
    return shuffled.batch(size).to_iter_dataset(alone).mp_prefetch(options)


def of_spdl(samples: Arrays, engine: str, workers: int, size: int) -> Any:
    from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess

    indices = np.random.default_rng(0).permutation(len(samples)).tolist()
    builder = (
        PipelineBuilder()
        .add_source(indices)
        .pipe(samples.__getitem__, concurrency=workers)
        .aggregate(size)
        .pipe(stacked)
        .add_sink(workers * AHEAD)
    )
    if engine == "process":
        return run_pipeline_in_subprocess(builder.get_config(), num_threads=workers)
    return _while_open(builder.build(num_threads=workers))


def _while_open(pipeline: Any) -> Iterator[Any]:
    with pipeline.auto_stop():
        yield from pipeline


_BATCHES = {"grain": of_grain, "spdl": of_spdl}
