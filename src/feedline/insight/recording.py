"""Recordings: all timing data of a run, as a file.

A file is JSON, compressed if its name ends in `.gz`. Times and durations are in microseconds since the start of the
recording; three decimals keep the nanoseconds. In memory, they are nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadRecording
from feedline.insight.batch_rows import COLUMNS, DEFAULTS, DURATIONS, MOMENTS, Totals, columns_of
from feedline.insight.period import Period, period_of
from feedline.insight.stats import SlowSample, Stats, WorkerMemory, plain
from feedline.insight.trace import trace_of
from feedline.system.failures import words
from feedline.system.kept_file import write_durably
from feedline.types import JsonObject

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
    """When the loop requested the batch after the last."""
    ended: int = 0
    """When the epoch ended; 0 if it did not."""


@dataclass
class Recording:
    """All timings of a run.

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

    settings: JsonObject = field(default_factory=dict)
    environment: JsonObject = field(default_factory=dict)
    started: float = 0.0
    """When the recording began: seconds since 1970."""
    epochs: list[EpochSpan] = field(default_factory=list)
    rows: dict[str, NDArray[np.int64]] = field(default_factory=lambda: columns_of([]))
    """One per batch; see `feedline.insight.batch_rows.COLUMNS`."""
    stages: dict[str, list[list[int]]] = field(default_factory=dict)
    """Stages named by users: for each, pairs of a row number and the nanoseconds that its task spent in the stage."""
    slow_samples: list[SlowSample] = field(default_factory=list)
    system: dict[str, list[float | None]] = field(default_factory=dict)
    """Machine figures by column; `at` is the time of each reading, in nanoseconds."""
    faults: list[JsonObject] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    counters: JsonObject = field(default_factory=dict)
    """The counters of `loader.stats()` at the end."""
    memory: list[WorkerMemory] = field(default_factory=list)
    settled: int | None = None
    """With "auto": when the number of workers was found, in nanoseconds. None if it was not found, or was given."""

    # -- its figures -------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Return the statistics of the recorded time, as `loader.stats()` returned them."""
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
            is_recorded=True,
        )

    def _settled(self, since: int, workers: int) -> Period:
        """Return the measurements since the number of workers was found."""
        total = Totals()
        for totals in self._totals(since):
            total.merge(totals)
        return period_of(total, workers)

    def _totals(self, since: int | None = None) -> list[Totals]:
        """Add up the rows of each epoch, of batches delivered after `since`.

        By default everything counts: an epoch may have begun before the recording did, while `iter(loader)` ran.
        """
        found, got = [], self.rows["got"]
        in_order = bool(self.settings.get("in_order", True))
        for number, span in enumerate(self.epochs, 1):
            end = self.epochs[number].row if number < len(self.epochs) else len(got)
            begin = span.row + (0 if since is None else int((got[span.row : end] <= since).sum()))
            if since is not None and begin == end:
                continue
            totals = Totals(span.begun if since is None else max(span.begun, since))
            if since is None or span.begun >= since:
                totals.open(span.opened)
            totals.fold({name: column[begin:end] for name, column in self.rows.items()}, in_order=in_order)
            for name, pairs in self.stages.items():
                for row, duration in pairs:
                    if begin <= row < end:
                        totals.add_stage(name, duration)
            if span.ended:
                totals.end(span.asked, span.ended)
            found.append(totals)
        return found

    def chrome_trace(self) -> JsonObject:
        """Return a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open, once it is written as JSON."""
        return trace_of(self.rows, in_order=bool(self.settings.get("in_order", True)))

    # -- its file ----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to a file, compressed if its name ends in `.gz`. Replaces an existing file atomically.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(path)
        text = json.dumps({"format": FORMAT, "version": VERSION, **self._plain()}, separators=(",", ":"), default=repr)
        data = text.encode()
        write_durably(path, gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)

    def _plain(self) -> dict[str, object]:
        rows = {
            name: _microseconds(column) if name in _TIMES else column.tolist() for name, column in self.rows.items()
        }
        epochs = [
            {name: value / 1e3 if name in _SPAN_TIMES else value for name, value in asdict(span).items()}
            for span in self.epochs
        ]
        stages = {name: [[number, spent / 1e3] for number, spent in pairs] for name, pairs in self.stages.items()}
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
            BadRecording: the file cannot be read, is cut off, has another version, or is not a recording.
        """
        content = _read(Path(path))
        try:
            return cls._of(content)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            raise BadRecording(
                f"{path} is a recording, but part of it is missing or damaged ({type(exc).__name__}: {exc!s:.200}). "
                "It may have been edited. Record the run again: with feedline.record(loader, path)."
            ) from exc

    @classmethod
    def _of(cls, content: JsonObject) -> Recording:
        """Return the recording in a file's content, with all values checked.

        Raises KeyError, TypeError, ValueError, AttributeError or OverflowError: something is missing or invalid.
        """
        columns = dict(content["rows"])
        for name in ("computed", "queued"):  # missing in older recordings
            columns.setdefault(name, [DEFAULTS[name] / 1e3] * len(columns["got"]))
        rows = {name: _column(name, columns[name]) for name in COLUMNS}
        settled = content.get("settled")
        if len({column.shape for column in rows.values()}) != 1:
            raise ValueError("its columns have different lengths")
        system = {str(name): [_figure(value) for value in column] for name, column in content["system"].items()}
        if len({len(column) for column in system.values()}) > 1:
            raise ValueError("the columns of machine figures have different lengths")
        if "at" in system:
            system["at"] = [None if at is None else _time(at) for at in system["at"]]
        _check_settings(content)
        return cls(
            **{name: content[name] for name in _AS_THEY_ARE},
            epochs=_epochs(content["epochs"], rows["got"]),
            rows=rows,
            stages={
                str(name): [[_whole(number), _time(spent)] for number, spent in pairs]
                for name, pairs in content["stages"].items()
            },
            system=system,
            slow_samples=[
                SlowSample(_shallow(slow["index"]), _number(slow["seconds"]), _whole(slow["worker"], -1))
                for slow in content["slow_samples"]
            ],
            memory=[
                WorkerMemory(_whole(one["worker"], -1), _whole(one["pss_bytes"]), _whole(one["growth_bytes"], -_MOST))
                for one in content["memory"]
            ],
            settled=None if settled is None else _time(settled),
        )


_AS_THEY_ARE = ("settings", "environment", "started", "faults", "log", "counters")
"""Fields that a file stores unchanged."""


def _microseconds(column: NDArray[np.int64]) -> list[float]:
    return cast("list[float]", (column / 1e3).round(3).tolist())


_MOST = 1 << 53
"""The largest value of any number. Sums of some rows stay within 64 bits, and browsers keep all digits."""
_MOST_NS = 10**16
"""The longest time since the start of a recording, and the longest duration: about four months."""
_MOST_DEPTH = 32
"""How deeply settings and the like may be nested."""
_LEAST = {"worker": -1}
_LARGEST = {"worker": 1 << 20, "samples": 1 << 40, "behind": 1 << 20, "held": 1, "first": 1, "weight": 1 << 40}
"""Smallest and largest values of a column, where they are not 0 and `_MOST`."""
_MOST_WORKERS = 1 << 16
_SETTINGS = {
    **dict.fromkeys(("cores", "prefetch", "workers", "local_ranks"), _MOST_WORKERS),
    "memory_limit": 1 << 64,  # a machine without a limit may report such a value
}
"""Settings that figures are derived from, and their largest values."""
_COUNTERS = {
    "workers": _MOST_WORKERS,
    **dict.fromkeys(("batches", "failures", "restarted_workers", "recycled_workers"), _MOST),
    **dict.fromkeys(("overflowed_batches", "copied_batches"), _MOST),
}


def _column(name: str, values: object) -> NDArray[np.int64]:
    """Return a column of the rows; times in nanoseconds."""
    if name in _TIMES:
        times = np.array(values, np.float64) * 1e3
        if times.ndim != 1 or not (np.abs(times) <= _MOST_NS).all():  # rejects NaN too
            raise ValueError(f"a time or duration in {name!r} is not a number, or is too large")
        return times.round().astype(np.int64)
    counts = np.array(values) if values else np.empty(0, np.int64)
    least, most = _LEAST.get(name, 0), _LARGEST.get(name, _MOST)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or ((counts < least) | (counts > most)).any():
        raise ValueError(f"a value in {name!r} is not an integer from {least} to {most}")
    return counts.astype(np.int64)


def _epochs(spans: Iterable[JsonObject], got: NDArray[np.int64]) -> list[EpochSpan]:
    found = [
        EpochSpan(**{name: _time(value) if name in _SPAN_TIMES else _whole(value) for name, value in span.items()})
        for span in spans
    ]
    ends = [*(span.row for span in found[1:]), len(got)]
    for span, end in zip(found, ends, strict=False):  # without epochs, there is one end too many
        if not span.row <= end <= len(got):
            raise ValueError(f"epoch {span.epoch} begins with row {span.row}, which does not exist")
        if (got[span.row : end] < span.begun).any() or span.asked > span.ended > 0:
            raise ValueError(f"epoch {span.epoch} begins after a batch of it was delivered, or ends too early")
    return found


def _check_settings(content: JsonObject) -> None:
    """Check the types of the fields that a file stores unchanged."""
    for name, kind in (("settings", dict), ("environment", dict), ("counters", dict), ("faults", list), ("log", list)):
        if not isinstance(_shallow(content[name]), kind):
            raise TypeError(f"{name!r} is not a {kind.__name__}")
    if not all(isinstance(fault, dict) for fault in content["faults"]) or not all(
        isinstance(one, str) for one in content["log"]
    ):
        raise TypeError("a fault is not a dict, or a log line is not text")
    _number(content["started"])
    for name, most in _SETTINGS.items():
        if content["settings"].get(name) is not None:
            _whole(content["settings"][name], int(name == "local_ranks"), most)
    for name, most in _COUNTERS.items():
        _whole(content["counters"].get(name, 0), 0, most)
    for count in content["counters"].get("faults", {}).values():
        _whole(count)


def _shallow(value: object, left: int = _MOST_DEPTH) -> object:
    """Return the value. Raises ValueError: it is nested too deeply to be traversed recursively."""
    if isinstance(value, (dict, list)):
        if not left:
            raise ValueError(f"a value is nested more than {_MOST_DEPTH} levels deep")
        for one in value.values() if isinstance(value, dict) else value:
            _shallow(one, left - 1)
    return value


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or not abs(value) <= _MOST:  # rejects NaN too
        raise ValueError(f"{value!r:.60} is not a number up to {_MOST}")
    return value


def _figure(value: object) -> float | None:
    return None if value is None else _number(value)


def _whole(value: object, least: int = 0, most: int = _MOST) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.60} is not an integer from {least} to {most}")
    return value


def _time(value: object) -> int:
    """Convert microseconds to nanoseconds."""
    microseconds = _number(value)
    if abs(microseconds) > _MOST_NS / 1e3:
        raise ValueError(f"{value!r} is not a time or duration")
    return round(microseconds * 1e3)


_MOST_TIMES = 32
_ALWAYS_BYTES = 1 << 24
"""A compressed file may expand to this many times its size, and in any case to this many bytes. Recordings compress to
about a third of their size."""


def _unpacked(data: bytes) -> bytes:
    """Decompress gzip data. Raises EOFError, zlib.error, or ValueError: it expands far more than a recording."""
    most = max(_ALWAYS_BYTES, _MOST_TIMES * len(data))
    unpacker = zlib.decompressobj(31)
    text = unpacker.decompress(data, most)
    if not unpacker.eof:
        if unpacker.unconsumed_tail and unpacker.decompress(unpacker.unconsumed_tail, 1):
            raise ValueError(f"its {len(data):,} bytes decompress to more than {most:,}, so decompression was stopped")
        if not unpacker.eof:
            raise EOFError
    if unpacker.unused_data:
        raise ValueError("there are extra bytes after the compressed data")
    return text


def _read(path: Path) -> dict[str, object]:
    """Return the content of a file, if it is a recording of this version."""
    try:
        data = path.read_bytes()
        text = (_unpacked(data) if data[:2] == b"\x1f\x8b" else data).decode()
        content = json.loads(text)
    except (EOFError, zlib.error) as exc:
        raise BadRecording(_cut_off(path)) from exc
    except OSError as exc:
        raise BadRecording(f"{path} cannot be read: {exc.strerror or exc}. Pass the path of a recording.") from exc
    except json.JSONDecodeError as exc:
        if text.lstrip().startswith(f'{{"format":"{FORMAT}"'):
            raise BadRecording(_cut_off(path)) from exc
        raise BadRecording(_none(path, "it is not JSON")) from exc
    except UnicodeDecodeError as exc:
        raise BadRecording(_none(path, "it is not text")) from exc
    except (ValueError, RecursionError) as exc:  # numbers of thousands of digits, deeply nested brackets, a zip bomb
        raise BadRecording(_none(path, f"{words(exc)}")) from exc
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadRecording(_none(path, f'its "format" is not {FORMAT!r}'))
    if content.get("version") != VERSION:
        raise BadRecording(
            f"{path} is a recording of version {content.get('version')!r}, but this feedline reads version {VERSION}. "
            "Read it with the feedline version that wrote it, or record the run again."
        )
    return content


def _cut_off(path: Path) -> str:
    return (
        f"{path} is a recording that was cut off after {path.stat().st_size} bytes: the disk may have been full, or "
        "copying was interrupted. Copy it again, or record the run again."
    )


def _none(path: Path, why: str) -> str:
    return f"{path} is not a recording: {why}. To make one, use: with feedline.record(loader, path)."
