"""Recordings: all timed facts of a run, as a file.

A file is JSON, compressed if its name ends in `.gz`. Moments and durations are in microseconds, counted from when the
recording began; three digits after the point keep the nanoseconds. Inside, they are nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadRecording
from feedline.observe.batch_rows import COLUMNS, DEFAULTS, DURATIONS, MOMENTS, Totals, columns_of
from feedline.observe.period import Period, period_of
from feedline.observe.stats import SlowSample, Stats, WorkerMemory, plain
from feedline.observe.trace import trace_of

FORMAT = "feedline recording"
VERSION = 1
_TIMES = frozenset((*MOMENTS, *DURATIONS))
_SPAN_TIMES = frozenset(("begun", "opened", "asked", "ended"))


@dataclass(frozen=True)
class EpochSpan:
    """Where an epoch lies in a recording."""

    epoch: int
    begun: int
    """When `iter(loader)` was called."""
    opened: int
    """How long that took."""
    row: int
    """The number of its first row."""
    asked: int = 0
    """When the end was asked for, and"""
    ended: int = 0
    """when it was told; 0 if it was not."""


@dataclass
class Recording:
    """All timed facts of a run.

    Example:
        >>> import feedline, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.json")
        >>> loader = feedline.Loader(list(range(8)), 2)
        >>> with feedline.record(loader, path):
        ...     batches = list(loader)
        >>> recording = Recording.load(path)
        >>> len(recording.rows["got"]), recording.stats().total.samples
        (4, 8)
    """

    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    started: float = 0.0
    """When the recording began: seconds since 1970."""
    epochs: list[EpochSpan] = field(default_factory=list)
    rows: dict[str, NDArray[np.int64]] = field(default_factory=lambda: columns_of([]))
    """One per batch; see `feedline.observe.batch_rows.COLUMNS`."""
    stages: dict[str, list[list[int]]] = field(default_factory=dict)
    """Stages that users have named: for each, the rows of its tasks and how long these were in it."""
    slow_samples: list[SlowSample] = field(default_factory=list)
    system: dict[str, list[float | None]] = field(default_factory=dict)
    """Figures of the machine in columns; `at` says when, in nanoseconds."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)
    """The counters of `loader.stats()` at the end."""
    memory: list[WorkerMemory] = field(default_factory=list)
    settled: int | None = None
    """With "auto": when the number of workers was found, in nanoseconds; None if it was not, or was given."""

    # -- what it says ------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Return what `loader.stats()` told of the recorded time."""
        workers = int(self.counters.get("workers", 0))
        epochs, total = self._totals(), Totals()
        epochs = [totals for totals in epochs[:-1] if totals.batches] + epochs[-1:]
        for totals in epochs:
            total.merge(totals)
        periods = [period_of(totals, workers) for totals in epochs]
        return Stats(
            epoch=periods[-1] if periods else Period(),
            last_epoch=periods[-2] if len(periods) > 1 else None,
            total=period_of(total, workers),
            counters=self.counters,
            settings=self.settings,
            slowest_samples=tuple(self.slow_samples),
            memory=tuple(self.memory),
            settled=None if self.settled is None else self._settled(self.settled, workers),
        )

    def _settled(self, since: int, workers: int) -> Period:
        """Return what was measured since the number of workers was found."""
        total = Totals()
        for totals in self._totals(since):
            total.merge(totals)
        return period_of(total, workers)

    def _totals(self, since: int = 0) -> list[Totals]:
        """Add the rows up, by epoch; those of batches that were delivered later than `since`."""
        found, got = [], self.rows["got"]
        in_order = bool(self.settings.get("in_order", True))
        for number, span in enumerate(self.epochs, 1):
            end = self.epochs[number].row if number < len(self.epochs) else len(got)
            begin = span.row + (int((got[span.row : end] <= since).sum()) if since else 0)
            if since and begin == end:
                continue
            totals = Totals(max(span.begun, since))
            if span.begun >= since:
                totals.open(span.opened)
            totals.fold({name: column[begin:end] for name, column in self.rows.items()}, in_order=in_order)
            for name, told in self.stages.items():
                for row, duration in told:
                    if begin <= row < end:
                        totals.add_stage(name, duration)
            if span.ended:
                totals.end(span.asked, span.ended)
            found.append(totals)
        return found

    def chrome_trace(self) -> dict[str, Any]:
        """Return a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open, once it is written as JSON."""
        return trace_of(self.rows, in_order=bool(self.settings.get("in_order", True)))

    # -- its file ----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to a file; compressed if its name ends in `.gz`. One that is there is replaced at once.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(path)
        text = json.dumps({"format": FORMAT, "version": VERSION, **self._plain()}, separators=(",", ":"), default=repr)
        data = text.encode()
        beside = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            beside.write_bytes(gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)

    def _plain(self) -> dict[str, Any]:
        rows = {
            name: _microseconds(column) if name in _TIMES else column.tolist() for name, column in self.rows.items()
        }
        epochs = [
            {name: value / 1e3 if name in _SPAN_TIMES else value for name, value in asdict(span).items()}
            for span in self.epochs
        ]
        stages = {name: [[number, spent / 1e3] for number, spent in told] for name, told in self.stages.items()}
        system = dict(self.system)
        if "at" in system:
            system["at"] = [None if at is None else at / 1e3 for at in system["at"]]
        return {
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
            "epochs": epochs,
            "rows": rows,
            "stages": stages,
            "system": system,
            "slow_samples": [{**vars(slow), "index": plain(slow.index)} for slow in self.slow_samples],
            "memory": [asdict(one) for one in self.memory],
            "settled": None if self.settled is None else self.settled / 1e3,
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording.

        Raises:
            BadRecording: the file cannot be read, is cut off, of another version, or no recording.
        """
        told = _read(Path(path))
        try:
            return cls._of(told)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise BadRecording(
                f"{path} is a recording, but a part of it is missing or damaged ({type(exc).__name__}: {exc}). It may "
                "have been edited. Record the run again: with feedline.record(loader, path)."
            ) from exc

    @classmethod
    def _of(cls, told: dict[str, Any]) -> Recording:
        columns = dict(told["rows"])
        for name in ("computed", "queued"):  # which older recordings do not have
            columns.setdefault(name, [DEFAULTS[name] / 1e3] * len(columns["got"]))
        rows = {
            name: _nanoseconds(columns[name]) if name in _TIMES else np.array(columns[name], np.int64)
            for name in COLUMNS
        }
        settled = told.get("settled")
        if len({column.shape for column in rows.values()}) != 1 or rows["got"].ndim != 1:
            raise ValueError("its columns have different lengths")
        epochs = [
            EpochSpan(**{name: round(value * 1e3) if name in _SPAN_TIMES else value for name, value in span.items()})
            for span in told["epochs"]
        ]
        system = dict(told["system"])
        if "at" in system:
            system["at"] = [None if at is None else round(at * 1e3) for at in system["at"]]
        return cls(
            **{name: told[name] for name in _AS_THEY_ARE},
            epochs=epochs,
            rows=rows,
            stages={
                name: [[int(number), round(spent * 1e3)] for number, spent in pairs]
                for name, pairs in told["stages"].items()
            },
            system=system,
            slow_samples=[SlowSample(**slow) for slow in told["slow_samples"]],
            memory=[WorkerMemory(**one) for one in told["memory"]],
            settled=None if settled is None else round(settled * 1e3),
        )


_AS_THEY_ARE = ("settings", "environment", "started", "faults", "log", "counters")
"""Fields that a file holds as they are."""


def _microseconds(column: NDArray[np.int64]) -> list[float]:
    return cast("list[float]", (column / 1e3).round(3).tolist())


def _nanoseconds(values: list[float]) -> NDArray[np.int64]:
    column = np.array(values, np.float64) * 1e3
    if not np.isfinite(column).all():
        raise ValueError("a moment or duration is no number")
    return column.round().astype(np.int64)


def _read(path: Path) -> dict[str, Any]:
    """Return what a file holds, if it is a recording of this version."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        told = json.loads(text)
    except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
        raise BadRecording(_cut_off(path)) from exc
    except OSError as exc:
        raise BadRecording(f"{path} cannot be read: {exc.strerror or exc}. Give the file of a recording.") from exc
    except json.JSONDecodeError as exc:
        if text.lstrip().startswith(f'{{"format":"{FORMAT}"'):
            raise BadRecording(_cut_off(path)) from exc
        raise BadRecording(_none(path, "it is no JSON")) from exc
    except UnicodeDecodeError as exc:
        raise BadRecording(_none(path, "it is no text")) from exc
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise BadRecording(_none(path, f'its "format" is not {FORMAT!r}'))
    if told.get("version") != VERSION:
        raise BadRecording(
            f"{path} is a recording of version {told.get('version')!r}, and this feedline reads version {VERSION}. "
            "Read it with the feedline that wrote it, or record the run again."
        )
    return cast("dict[str, Any]", told)


def _cut_off(path: Path) -> str:
    return (
        f"{path} is a recording that was cut off after {path.stat().st_size} bytes: the disk may have been full, or a "
        "copy of it was interrupted. Copy it once more, or record the run again."
    )


def _none(path: Path, why: str) -> str:
    return f"{path} is no recording: {why}. Recordings are written by: with feedline.record(loader, path)."
