"""Other libraries that load images, as their guides advise: Grain (`grain`) and SPDL (`spdl_core`).

Both call the same function for a sample as torch's loader does, in threads or in processes, and stack NumPy arrays.
SPDL's pipeline runs in threads; instead of several processes, it uses one process with as many threads.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from feedline.errors import BadOption
from feedline.tools.measure import harness, rows

AHEAD = 2
"""Batches that are made ahead for each worker, as torch's loader has it by default."""


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


class Peer:
    """What another library iterates over, as the harness expects a loader."""

    prefetch_factor = AHEAD

    def __init__(self, opened: Callable[[], Iterable[Any]], workers: int, length: int) -> None:
        self.num_workers = workers
        self._opened = opened
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return map(tensors, self._opened())


def entries(name: str, dataset: Dataset[Any], decoder: str, arguments: argparse.Namespace) -> Iterator[harness.Entry]:
    """Yield a library with each engine and number of workers, in the cases of torch's loader with the same dataset.

    Raises:
        BadOption: it is not installed.
    """
    try:
        batches = {"grain": _grain, "spdl": _spdl}[name]()
    except ImportError as exc:
        package = {"grain": "grain", "spdl": "spdl_core"}[name]
        raise BadOption(f"--peers {name} needs a package that is not installed: pip install {package}.") from exc
    samples, size = Arrays(dataset), arguments.batch_size
    for workers in filter(None, arguments.workers):
        for engine in ("process", "thread"):
            opened = partial(batches, samples, engine, workers, size)
            case: harness.Case = {"decoder": decoder, "workers": workers}
            loader = partial(Peer, opened, workers, len(samples) // size)
            yield rows.steady(case, harness.Side(name, engine), loader, arguments, batch_size=size)


def _grain() -> Callable[..., Iterable[Any]]:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain reads options there, and expects a program that has parsed its arguments

    def batches(samples: Arrays, engine: str, workers: int, size: int) -> Any:
        shuffled = grain.MapDataset.source(samples).shuffle(seed=0)
        if engine == "thread":
            reading = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=workers * AHEAD * size)
            return shuffled.to_iter_dataset(reading).batch(size)
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=AHEAD)
        alone = grain.ReadOptions(num_threads=1, prefetch_buffer_size=size)
        return shuffled.batch(size).to_iter_dataset(alone).mp_prefetch(options)

    return batches


def _spdl() -> Callable[..., Iterable[Any]]:
    from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess

    def batches(samples: Arrays, engine: str, workers: int, size: int) -> Any:
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

    return batches


def _while_open(pipeline: Any) -> Iterator[Any]:
    with pipeline.auto_stop():
        yield from pipeline
