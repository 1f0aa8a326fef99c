"""Recordings: all timing data of a run, as a file.

A file has two lines of JSON, and is compressed if its name ends in `.gz`. The second line has the data. The
first one has its length and checksum, so that damage is noticed before anything is used.

Times are nanoseconds since the start of the recording, in the file as in memory.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadRecording
from feedline.insight.batch_rows import COLUMNS, Totals, columns_of
from feedline.insight.period import Period, period_of
from feedline.insight.stats import SlowSample, Stats, WorkerMemory, plain
from feedline.insight.trace import trace_of
from feedline.system.failures import words
from feedline.system.files import write_durably
from feedline.types import JsonObject

FORMAT = "feedline recording"
VERSION = 1


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
            is_recorded=True,
        )

    def _totals(self) -> list[Totals]:
        """Add up the rows of each epoch; one may have begun before the recording did, while `iter(loader)` ran."""
        found, in_order = [], bool(self.settings.get("in_order", True))
        for number, span in enumerate(self.epochs, 1):
            begin, end = span.row, self.epochs[number].row if number < len(self.epochs) else len(self.rows["got"])
            totals = Totals(span.begun)
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
        body = json.dumps(self._plain(), separators=(",", ":"), default=repr).encode()
        header = {"format": FORMAT, "version": VERSION, "bytes": len(body), "crc32": zlib.crc32(body)}
        data = json.dumps(header, separators=(",", ":")).encode() + b"\n" + body
        write_durably(path, gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)

    def _plain(self) -> dict[str, object]:
        return vars(self) | {
            "epochs": [asdict(span) for span in self.epochs],
            "rows": {name: column.tolist() for name, column in self.rows.items()},
            "slow_samples": [{**vars(slow), "index": plain(slow.index)} for slow in self.slow_samples],
            "memory": [asdict(one) for one in self.memory],
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
            raise _damaged(Path(path), f"{type(exc).__name__}: {exc!s:.200}") from exc

    @classmethod
    def _of(cls, content: JsonObject) -> Recording:
        """Return the recording in a file's content."""
        kept: JsonObject = {
            "epochs": [EpochSpan(**span) for span in content["epochs"]],
            "rows": {name: np.array(content["rows"][name], np.int64) for name in COLUMNS},
            "slow_samples": [SlowSample(**slow) for slow in content["slow_samples"]],
            "memory": [WorkerMemory(**one) for one in content["memory"]],
        }
        return cls(**content | kept)


_MOST_TIMES = 32
_ALWAYS_BYTES = 1 << 24
"""A compressed file may expand to this many times its size, and in any case to this many bytes. Recordings compress to
about a third of their size."""


def _unpacked(data: bytes) -> bytes:
    """Decompress gzip data. Raises EOFError, zlib.error, or ValueError: it expands far more than a recording."""
    most = max(_ALWAYS_BYTES, _MOST_TIMES * len(data))
    unpacker = zlib.decompressobj(31)
    text = unpacker.decompress(data, most)
    if unpacker.eof:
        return text
    if unpacker.unconsumed_tail:
        raise ValueError(f"its {len(data):,} bytes decompress to more than {most:,}, so decompression was stopped")
    raise EOFError


def _read(path: Path) -> JsonObject:
    """Return the content of a file, if it is an undamaged recording of this version."""
    try:
        data = path.read_bytes()
        data = _unpacked(data) if data[:2] == b"\x1f\x8b" else data
        first, _, body = data.partition(b"\n")
        header = json.loads(first)
    except (EOFError, zlib.error) as exc:
        raise _cut_off(path) from exc
    except OSError as exc:
        raise BadRecording(f"{path} cannot be read: {exc.strerror or exc}. Pass the path of a recording.") from exc
    except (ValueError, RecursionError) as exc:  # neither JSON nor text
        raise _none(path, f"{words(exc)}") from exc
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise _none(path, f'its "format" is not {FORMAT!r}')
    if header.get("version") != VERSION:
        raise BadRecording(
            f"{path} is a recording of version {header.get('version')!r}, but this feedline reads version {VERSION}. "
            "Read it with the feedline version that wrote it, or record the run again."
        )
    size, checksum = header.get("bytes"), header.get("crc32")
    if isinstance(size, int) and len(body) < size:
        raise _cut_off(path)
    if len(body) != size or zlib.crc32(body) != checksum:
        raise _damaged(path, "its checksum differs")
    content: JsonObject = json.loads(body)
    return content


def _cut_off(path: Path) -> BadRecording:
    return BadRecording(
        f"{path} is a recording that was cut off after {path.stat().st_size} bytes: the disk may have been full, or "
        "copying was interrupted. Copy it again, or record the run again."
    )


def _damaged(path: Path, why: str) -> BadRecording:
    return BadRecording(
        f"{path} is a recording, but it was damaged or edited: {why}. Copy it again, or record the run again: with "
        "feedline.record(loader, path)."
    )


def _none(path: Path, why: str) -> BadRecording:
    return BadRecording(f"{path} is not a recording: {why}. To make one, use: with feedline.record(loader, path).")
