"""Both loaders under one set of option names, and datasets whose samples fail or kill their worker."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

import feedline
from tests.faults.deaths import Once, die

LOADERS = ("Loader", "DataLoader")

everywhere = pytest.mark.parametrize(
    ("loader_kind", "engine"),
    [("Loader", "inline"), ("DataLoader", "thread"), pytest.param("Loader", "process", marks=pytest.mark.slow)],
)
"""Both loaders and every engine. Processes make the same batches as threads, so they are slow tests."""

_TORCH_WORDS = {
    "workers": "num_workers",
    "prefetch": "prefetch_factor",
    "persistent": "persistent_workers",
    "worker_init": "worker_init_fn",
    "timeout_s": "timeout",
    "start_method": "multiprocessing_context",
}


# Any, throughout: options and datasets of any kind; both loaders, which have no public base class in common.
def make(kind: str, dataset: Any, batch_size: int | None = 4, **options: Any) -> Any:
    """Make a loader with the option names of `feedline.Loader`; `batch_size` is ignored with a batch sampler."""
    if "batch_sampler" not in options:
        options["batch_size"] = batch_size
    if kind == "Loader":
        return feedline.Loader(dataset, **options)
    if options.get("shard") is False:
        del options["shard"]  # torch's loader does that anyway
    return feedline.DataLoader(dataset, **{_TORCH_WORDS.get(name, name): value for name, value in options.items()})


def on(engine: str, workers: int = 2) -> dict[str, Any]:
    """Return the options that choose an engine."""
    return {} if engine == "inline" else {"engine": engine, "workers": workers}


def plain(batch: Any) -> Any:
    """Return a batch of any array library as lists."""
    if isinstance(batch, (np.ndarray, np.generic, torch.Tensor)):
        return batch.tolist()
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return batch


def batches_of(loader: Iterable[Any]) -> list[Any]:
    """Return the delivered batches as lists."""
    return [plain(batch) for batch in loader]


def outcomes_of(loader: Iterable[Any], most: int = 1000) -> list[Any]:
    """Return the delivered batches; where one raises, the exception, and continue."""
    outcomes: list[Any] = []
    batches = iter(loader)
    while len(outcomes) < most:
        try:
            outcomes.append(plain(next(batches)))
        except StopIteration:
            return outcomes
        except Exception as exc:
            outcomes.append(exc)
    raise AssertionError(f"no end after {most} batches: {outcomes[-3:]}")


def indices_of(faults: Iterable[Any]) -> list[Any]:
    return [fault.index for fault in faults]


class Bad(Exception):
    """Raised by failing samples."""


class Numbers:
    """Sample i is i; those of `bad` fail."""

    def __init__(self, count: int = 20, bad: Iterable[int] = ()) -> None:
        self.count = count
        self.bad = frozenset(bad)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise Bad(f"sample {index} is bad")
        return index


class Augmented(Numbers):
    """Sample i is i and a number of each of four generators."""

    def __getitem__(self, index: int) -> Any:
        # Drawn before it fails, which must not affect a replacement or a retry.
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(())), float(feedline.rng().random())]
        return np.array([super().__getitem__(index), *drawn])


class ByRng(Numbers):
    """Sample i is i and a number of `feedline.rng()`, which is reproducible on threads too."""

    def __getitem__(self, index: int) -> Any:
        drawn = feedline.rng().random()
        return np.array([super().__getitem__(index), drawn])


class Deadly(Augmented):
    """Workers die over samples of `fatal`: always, or only the first time if `once` is given."""

    def __init__(
        self,
        count: int = 20,
        fatal: Iterable[int] = (),
        *,
        bad: Iterable[int] = (),
        way: str = "killed",
        once: Once | None = None,
    ) -> None:
        super().__init__(count, bad)
        self.fatal = frozenset(fatal)
        self.way = way
        self.once = once

    def __getitem__(self, index: int) -> Any:
        if index in self.fatal and (self.once is None or self.once(index)):
            die(self.way)
        return super().__getitem__(index)


class Stream(torch.utils.data.IterableDataset[Any]):
    """The samples of another dataset as a stream; each worker has its share, unless `splits` is false.

    Its iterator continues after an exception.
    """

    def __init__(self, samples: Any, *, splits: bool = True) -> None:
        self.samples = samples
        self.splits = splits

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info() if self.splits else None
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return Reader(self.samples, first, step)


class Reader(Iterator[Any]):
    """Reads every n-th sample."""

    def __init__(self, samples: Any, first: int, step: int) -> None:
        self.samples = samples
        self.next = first
        self.step = step

    def __next__(self) -> Any:
        if self.next >= len(self.samples):
            raise StopIteration
        index, self.next = self.next, self.next + self.step
        return self.samples[index]


class StatefulReader(Reader):
    """A reader with a state."""

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class StatefulStream(Stream):
    """Its iterators have a state."""

    def __iter__(self) -> Iterator[Any]:
        reader = super().__iter__()
        assert isinstance(reader, Reader)
        return StatefulReader(reader.samples, reader.next, reader.step)


class Generated(Stream):
    """Its iterators are generators, which end at the first exception."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()


def are_gone(pids: Iterable[int]) -> bool:
    """Return whether none of the processes exists any more."""
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        return False
    return True


def pids_of(batches: Any) -> list[int]:
    """Return the worker processes behind an iterator of either loader."""
    return list(batches.worker_pids)


def kill_worker(batches: Any, number: int) -> None:
    """Kill a worker behind an iterator, unless it is already dead."""
    pid = pids_of(batches)[number]
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid():  # not another process that reuses the pid
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
