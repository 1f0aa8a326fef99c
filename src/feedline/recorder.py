"""Recording a run of a loader to a file."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feedline.errors import BadOption
from feedline.loader.base import LoaderBase
from feedline.observe.machine_figures import MachineFigures


@contextmanager
def record(loader: Any, path: str | os.PathLike[str]) -> Iterator[None]:
    """Write down every batch of a loader inside of this context, and what the machine was at meanwhile.

    The file is written at the end, also if an exception or Ctrl-C ends the run; one that is there is replaced.
    `feedline.observe.recording.Recording.load` reads it, `feedline report` draws it. While it lasts, every batch is
    kept: some 170 bytes each.

    Args:
        loader: a `feedline.DataLoader` or `feedline.Loader`.
        path: of the file, JSON; compressed if it ends in `.gz`.

    Raises:
        BadOption: it is no loader of feedline's, or its runs are recorded already, or there is no such folder.
        OSError: the file cannot be written.

    Example:
        >>> import feedline, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.json.gz")
        >>> loader = feedline.Loader(list(range(8)), 2)
        >>> with feedline.record(loader, path):
        ...     batches = list(loader)
        >>> from feedline.observe.recording import Recording
        >>> Recording.load(path).stats().total.batches
        4
    """
    if not isinstance(loader, LoaderBase):
        raise BadOption(
            f"record() was given {type(loader).__name__}, which is no loader of feedline's. Give the DataLoader or "
            "Loader itself, not its iterator and not what a framework made of it."
        )
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise BadOption(f"The recording cannot be written to {path}: there is no folder {folder}. Make it first.")
    loader._take_up()  # the settings may have been changed since, and with them who measures
    resources = loader._resources
    observer = resources.counters.observer
    if observer.is_recording:
        raise BadOption("This loader is recorded already: a record() that is still open has it. Leave that one first.")
    logged = len(loader.faults)
    figures = MachineFigures(lambda: resources.worker_pids)
    observer.record()
    figures.open()
    try:
        yield
    finally:
        figures.close()
        recording = observer.recorded()
        stats = loader.stats()
        recording.settings, recording.environment = dict(stats.settings), environment()
        recording.counters, recording.memory = dict(stats.counters), list(stats.memory)
        recording.system, recording.log = figures.columns, figures.trouble
        recording.faults = [fault.as_dict() for fault in list(loader.faults)[logged:]]
        recording.save(path)


def environment() -> dict[str, str]:
    """Return what the run ran on, without names of machines or people."""
    packages = ("feedline", "numpy", "torch", "jax")
    return {
        **{name: str(getattr(sys.modules[name], "__version__", "")) for name in packages if name in sys.modules},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
