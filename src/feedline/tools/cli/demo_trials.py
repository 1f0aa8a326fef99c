"""What becomes of an epoch that is interrupted: another run resumes it, or one of its workers is killed."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from feedline.errors import InternalError, WorkerWarning
from feedline.tools.bench.harness import FEEDLINE, TORCH, Entry, Figures, Side, close


class Resuming:
    """An epoch of feedline's that ends after three quarters of its batches, and what comes next.

    Torch's loader saves no state: a program has to read those batches again, and to throw them away.
    """

    # object: datasets and arguments of loaders, as `Side.open` takes them.
    def __init__(self, datasets: Mapping[str, object], options: Mapping[str, object]) -> None:
        self._datasets, self._options = datasets, options
        loader = self._open(Side(FEEDLINE), seed=0)
        self.batches = len(loader) * 3 // 4
        iterator = iter(loader)
        for _ in range(self.batches):
            next(iterator)
        self._state = loader.state_dict()
        self._next = next(iterator)
        close(loader)

    # Any: feedline's or torch's loader.
    def _open(self, side: Side, **options: object) -> Any:
        return side.open(self._datasets[side.library], **{**self._options, **options})

    def entries(self) -> list[Entry]:
        """Return what to measure: the seconds until the next batch is there."""
        return [
            Entry({"data": "resume"}, Side(TORCH), self._again),
            Entry({"data": "resume"}, Side(FEEDLINE), self._resumed),
        ]

    def _again(self) -> Figures:
        began = time.perf_counter()
        loader = self._open(Side(TORCH), generator=torch.Generator().manual_seed(0))
        iterator = iter(loader)
        for _ in range(self.batches + 1):
            next(iterator)
        return {"seconds": time.perf_counter() - began}

    def _resumed(self) -> Figures:
        began = time.perf_counter()
        loader = self._open(Side(FEEDLINE), seed=0)
        loader.load_state_dict(self._state)
        batch = next(iter(loader))
        seconds = time.perf_counter() - began
        close(loader)
        if not all(torch.equal(found, wanted) for found, wanted in zip(batch, self._next, strict=True)):
            raise InternalError("The batch after feedline's loader has resumed differs from the one without a break.")
        return {"seconds": seconds}


# object: a dataset and arguments of loaders, as `Side.open` takes them.
def kill_worker(side: Side, dataset: object, options: Mapping[str, object]) -> tuple[int, str]:
    """Kill a worker in the middle of an epoch; return how many images came, and the error that ended it, if any."""
    loader, before = side.open(dataset, **{**options, "shuffle": False}), multiprocessing.active_children()
    labels: list[int] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WorkerWarning)  # says what this is about
            for number, (_, some) in enumerate(loader):
                labels += some.tolist()
                if number == 1:
                    next(one for one in multiprocessing.active_children() if one not in before).kill()
    except RuntimeError as exc:
        return len(labels), type(exc).__name__
    finally:
        close(loader)
    return len(labels), ""
