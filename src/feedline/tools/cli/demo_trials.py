"""What happens to an interrupted epoch: another run resumes it, or one of its workers is killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from feedline.errors import InternalError, WorkerWarning
from feedline.tools.measure.harness import FEEDLINE, TORCH, Entry, Figures, Side, close

Open = Callable[..., Any]
"""Opens the loader of a side, with further arguments. Any: torch's loader or feedline's."""


class Resuming:
    """An epoch that is interrupted after three quarters of its batches.

    Torch's loader saves no state: a program has to read these batches again and throw them away.
    """

    def __init__(self, opened: Open) -> None:
        self._opened = opened
        loader = opened(Side(FEEDLINE), seed=0)
        batches = iter(loader)
        self.batch_count = len(loader) * 3 // 4
        for _ in range(self.batch_count):
            next(batches)
        self._state, self._next = loader.state_dict(), next(batches)
        close(loader)

    def entries(self) -> list[Entry]:
        """Return what to measure: the time from opening a loader to the batch after the interruption."""
        measures = {TORCH: self._read_again, FEEDLINE: self._resume}
        return [Entry({"data": "resume"}, Side(name), measure) for name, measure in measures.items()]

    def _read_again(self) -> Figures:
        began = time.perf_counter()
        batches = iter(self._opened(Side(TORCH), generator=torch.Generator().manual_seed(0)))
        for _ in range(self.batch_count + 1):
            next(batches)
        return {"seconds": time.perf_counter() - began}

    def _resume(self) -> Figures:
        began = time.perf_counter()
        loader = self._opened(Side(FEEDLINE), seed=0)
        loader.load_state_dict(self._state)
        batch = next(iter(loader))
        seconds = time.perf_counter() - began
        close(loader)
        if not all(map(torch.equal, batch, self._next)):
            raise InternalError("The first batch after resuming differs from the one without an interruption.")
        return {"seconds": seconds}


def kill_worker(opened: Open, side: Side) -> str:
    """Kill a worker in the middle of an epoch; return how the epoch ended."""
    others, labels = multiprocessing.active_children(), list[int]()
    loader = opened(side, shuffle=False)
    images = len(loader.dataset)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WorkerWarning)  # it reports the death
            for number, (_, some) in enumerate(loader):
                labels += some.tolist()
                if number == 1:
                    victim = next(child for child in multiprocessing.active_children() if child not in others)
                    victim.kill()
    except (RuntimeError, EOFError, OSError) as exc:  # the last two come from a batch in transit
        # Otherwise torch's signal handler raises once more when the other worker ends. If the exception was that of a
        # batch in transit, the handler may come only now, and interrupt the first call.
        for _ in range(2):
            with contextlib.suppress(RuntimeError):
                victim.join()
        return f"{type(exc).__name__} at {len(labels)}"
    finally:
        close(loader)
    return f"all {images} images" if len(labels) == images else f"{len(labels)} of {images} images"
