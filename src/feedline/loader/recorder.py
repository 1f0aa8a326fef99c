"""Record a loader's run to a file."""

from __future__ import annotations

import math
import os
import platform
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from feedline.errors import BadOption
from feedline.insight.machine_figures import MachineFigures
from feedline.insight.period import Period, period_of
from feedline.insight.recording import Recording
from feedline.loader.base import LoaderBase, session_of
from feedline.system.failures import add_note, words
from feedline.system.files import make_folder_for


@contextmanager
def record(loader: object, path: str | os.PathLike[str]) -> Iterator[None]:
    """Record every batch of a loader inside this context, and the machine's load meanwhile.

    The file is written at the end, even if an exception or Ctrl-C ends the run; an existing file is replaced.
    `feedline.insight.recording.Recording.load` reads it, `feedline report` draws it. Every batch takes about 190 bytes
    of memory until the end.

    Args:
        loader: a `feedline.DataLoader` or `feedline.Loader`.
        path: the JSON file to write; compressed if the name ends in `.gz`.

    Raises:
        BadOption: `loader` is not a feedline loader, or the folder does not exist.
        OSError: the file cannot be written. If an exception ended the run, it is raised instead, with a note.

    Example:
        >>> import feedline, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.json.gz")
        >>> loader = feedline.Loader(list(range(8)), 2)
        >>> with feedline.record(loader, path):
        ...     batches = list(loader)
        >>> from feedline.insight.recording import Recording
        >>> Recording.load(path).stats().total.batches
        4
    """
    if not isinstance(loader, LoaderBase):
        raise BadOption(
            f"record() got {type(loader).__name__}, which is not a feedline loader. Pass the DataLoader or Loader "
            "itself, not its iterator or a wrapper that a framework made."
        )
    if Path(path).is_dir():
        raise BadOption(f"The recording cannot be written to {path}: that is a folder. Give another file.")
    make_folder_for(Path(path))
    session = session_of(loader)
    session.refresh(loader)  # changed settings replace the counters
    figures = MachineFigures(lambda: session.resources.worker_pids)
    recorder = Recorder(loader)
    figures.open()
    pid = os.getpid()

    def save() -> None:
        if os.getpid() == pid:  # a process that was forked inside the context must not write its parent's file
            figures.close()
            recorder.recording(figures).save(path)

    try:
        yield
    except BaseException as exc:
        try:
            save()
        except OSError as unsaved:  # the exception that ended the run is more important
            add_note(exc, f"The recording could not be written to {path}: {words(unsaved)}.")
        raise
    save()


class Recorder:
    """Records a loader until `recording` is called. It holds no part of the loader that keeps workers or memory alive.

    Args:
        loader: the loader, with its current settings.
        most: the number of batches to record; later ones are only measured.
    """

    def __init__(self, loader: LoaderBase, most: float = math.inf) -> None:
        self.counters = session_of(loader).resources.counters
        self._faults = loader.faults
        self._logged = len(self._faults)
        self._loader = weakref.ref(loader)
        self._tuning = session_of(loader).tuning
        self._stats = loader.stats()
        self.follow(loader)
        self._kept = self.counters.observer.record(most)

    def follow(self, loader: LoaderBase) -> None:
        """Follow the workers that the loader has started."""
        self._watch = session_of(loader).resources.watch

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are alive."""
        watch = self._watch()
        return [] if watch is None else watch.pids()

    def period(self) -> Period:
        """Return the loader's figures so far, including batches that were not recorded."""
        total = self.counters.observer.totals(self.counters.batches)[2]
        return period_of(total, int(self._stats.counters["workers"]))

    def recording(self, figures: MachineFigures) -> Recording:
        """Return the recording, and stop recording.

        Args:
            figures: the machine's figures, started before the recording or at about the same time.
        """
        loader = self._loader()
        is_same = loader is not None and session_of(loader).resources.counters is self.counters
        if loader is not None and is_same:
            self._stats = loader.stats()
        waited = self.period().wait_s
        recording = self.counters.observer.recorded(self._kept)
        stats, faults = self._stats, self._faults
        recording.settings, recording.environment = dict(stats.settings), environment()
        recording.counters = {**stats.counters, **_later(stats.counters, self.counters.as_dict())}
        recording.counters |= {"wait_s": waited, "faults": faults.counts()}
        if self._tuning is not None:  # tuning continues even if the loader is gone
            recording.settings |= {"workers": self._tuning.count, "prefetch": self._tuning.depth}
            recording.counters["workers"] = self._tuning.count
        recording.memory = list(stats.memory)
        recording.system, recording.log = figures.since(self._kept.origin), list(figures.trouble)
        if loader is not None and not is_same:
            recording.log.append(
                "The loader's settings changed during the recording. Batches after the change are not included."
            )
        if self._kept.is_full:
            recording.log.append(
                f"Of {self.counters.batches:,} batches, only the first {len(recording.rows['got']):,} are recorded: "
                "more would take too much memory."
            )
        recording.faults = [fault.as_dict() for fault in list(faults)[self._logged :]]
        return recording


def _later(earlier: Mapping[str, int], now: dict[str, int]) -> dict[str, int]:
    """Return the current counters, or the earlier values where they are larger: these may include more."""
    return {name: max(value, earlier[name]) for name, value in now.items()}


def environment() -> dict[str, str]:
    """Return the versions and the platform of the run, without names of machines or people."""
    packages = ("feedline", "numpy", "torch", "jax")
    return {
        **{name: str(getattr(sys.modules[name], "__version__", "")) for name in packages if name in sys.modules},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
