"""What happens to an interrupted epoch: another run resumes it, or one of its workers is killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from feedline.errors import InternalError, WorkerWarning
from feedline.tools.measure.harness import FEEDLINE, TORCH, Entry, Figures, Side, close

Open = Callable[..., Any]
"""Opens the loader of a side, with further arguments. Any: torch's loader or feedline's."""


def resumed(opened: Open, done: int) -> list[Entry]:
    """Interrupt an epoch after `done` batches; return what to measure: the time from opening a loader to the next.

    Torch's loader saves no state: a program has to read these batches again and throw them away.
    """
    loader = opened(Side(FEEDLINE), seed=0)
    batches = iter(loader)
    for _ in islice(batches, done):
        pass
    state, expected = loader.state_dict(), next(batches)
    close(loader)

    def read_again() -> Figures:
        began = time.perf_counter()
        loader = opened(Side(TORCH), generator=torch.Generator().manual_seed(0))
        next(islice(loader, done, None))
        seconds = time.perf_counter() - began
        close(loader)
        return {"seconds": seconds}

    def resume() -> Figures:
        began = time.perf_counter()
        loader = opened(Side(FEEDLINE), seed=0)
        loader.load_state_dict(state)
        batch = next(iter(loader))
        seconds = time.perf_counter() - began
        close(loader)
        if not all(map(torch.equal, batch, expected)):
            raise InternalError("The first batch after resuming differs from the one without an interruption.")
        return {"seconds": seconds}

    return [Entry({}, Side(TORCH), read_again), Entry({}, Side(FEEDLINE), resume)]


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
