"""Loaders of the views. The code that the page shows is the code that runs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline
from feedline.insight.recording import Recording
from feedline.insight.stats import Stats


def loader_code(**arguments: object) -> str:
    """Return code that makes a loader of `dataset`, with one argument per line."""
    given = ["dataset", *(f"{name}={value!r}" for name, value in arguments.items())]
    lines = ["from feedline import DataLoader", "", "loader = DataLoader(", *(f"    {one}," for one in given), ")"]
    return "\n".join(lines)


# Any: a loader of any framework, and the user's objects.
def loader_of(code: str, **names: Any) -> Any:
    """Run code that makes a `loader`, and return it; `names` are the objects that the code expects."""
    exec(code, names)
    return names["loader"]


# Any: datasets and batches of any kind.
def record(loader: feedline.DataLoader[Any, Any], train: Callable[[], None]) -> Recording:
    """Train with a loader, close it, and return the recording of that."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        with feedline.record(loader, file):
            train()
        loader.close()
        return Recording.load(file)


def stats_of(loader: feedline.DataLoader[Any, Any], *, step_s: float, seconds: float) -> Stats:
    """Train for some seconds, epoch after epoch, with steps that sleep; close the loader and return its statistics."""
    until = time.monotonic() + seconds
    try:
        while True:
            for _ in loader:
                time.sleep(step_s)
                if time.monotonic() > until:
                    return loader.stats()  # while the workers, whose memory is included, are alive
    finally:
        loader.close()
