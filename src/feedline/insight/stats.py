"""The statistics that `loader.stats()` returns, to read, print or log."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from feedline.insight.histogram import Spread
from feedline.insight.period import Period
from feedline.insight.verdict import FEW, Verdict, cores_of, judge, moves_of
from feedline.types import JsonObject

__all__ = ["Period", "SlowSample", "Spread", "Stats", "WorkerMemory"]


@dataclass(frozen=True)
class SlowSample:
    """One of the samples that took longest to fetch.

    Example:
        >>> SlowSample(index=7, seconds=1.5, worker=0).seconds
        1.5
    """

    index: Any  # as the sampler yields it; for an iterable dataset, the position in the stream
    seconds: float
    worker: int
    """-1 for the training loop itself."""


@dataclass(frozen=True)
class WorkerMemory:
    """Memory of one worker process.

    Example:
        >>> WorkerMemory(worker=0, pss_bytes=200_000_000, growth_bytes=0).pss_bytes
        200000000
    """

    worker: int
    pss_bytes: int
    """Proportional set size: its private memory, plus a share of the memory that several processes map."""
    growth_bytes: int
    """How much its private memory has grown since it had warmed up."""


@dataclass(frozen=True, eq=False)
class Stats(Mapping[str, Any]):
    """Measurements of a loader so far. Also a mapping of the counters by name.

    Example:
        >>> from feedline import Loader
        >>> loader = Loader(list(range(6)), 2)
        >>> batches = list(loader)
        >>> stats = loader.stats()
        >>> stats.epoch.batches, stats["batches"], stats.epoch.samples
        (3, 3, 6)
        >>> stats.verdict.startswith("too early to say")
        True
    """

    epoch: Period
    """The current epoch, or the last one if none is running."""
    last_epoch: Period | None
    """The epoch before that."""
    total: Period
    """All epochs."""
    counters: Mapping[str, Any]
    """The content of the mapping."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    slowest_samples: tuple[SlowSample, ...] = ()
    """The ten that took longest, slowest first. Empty while samples take so little time that they are not timed."""
    memory: tuple[WorkerMemory, ...] = ()
    """Of worker processes that are alive, where the system reports it."""
    is_recorded: bool = False
    """True for the statistics of a recording, whose verdict is about all of it."""

    def __getitem__(self, key: str) -> Any:
        return self.counters[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.counters)

    def __len__(self) -> int:
        return len(self.counters)

    @property
    def faults(self) -> Mapping[str, int]:
        """Numbers of samples that failed, by what happened to them."""
        found: Mapping[str, int] = self.counters.get("faults", {})
        return found

    @property
    def judged(self) -> Period:
        """The period that the verdict is about: this epoch, or all epochs while this one has few batches.

        For a recording, it is all that was recorded.
        """
        few = self.epoch.batches < FEW and self.total.batches > self.epoch.batches
        return self.total if few or self.is_recorded else self.epoch

    @property
    def verdict(self) -> str:
        """What the training loop waits for, what to do about it, and why, in a sentence each."""
        return str(verdict_of(self))

    def as_dict(self) -> JsonObject:
        """Return plain values for JSON."""
        return {
            "verdict": self.verdict,
            "epoch": self.epoch.as_dict(),
            "last_epoch": None if self.last_epoch is None else self.last_epoch.as_dict(),
            "total": self.total.as_dict(),
            "counters": dict(self.counters),
            "settings": dict(self.settings),
            "slowest_samples": [
                {"index": plain(slow.index), "seconds": slow.seconds, "worker": slow.worker}
                for slow in self.slowest_samples
            ],
            "memory": [vars(memory) for memory in self.memory],
        }

    def flat(self, prefix: str = "feedline/") -> dict[str, float]:
        """Return only the numbers, each under one name: for W&B, MLflow, TensorBoard, Prometheus.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader([1, 2], 1)
            >>> batches = list(loader)
            >>> loader.stats().flat()["feedline/epoch/batches"]
            2
        """
        values = {"epoch": self.epoch.as_dict(), "total": self.total.as_dict(), "counters": dict(self.counters)}
        values["pss_bytes"] = {str(one.worker): one.pss_bytes for one in self.memory}
        return dict(_numbers(values, prefix))

    def __repr__(self) -> str:
        return f"<Stats: {self.total.batches} batches, {self.verdict}>"

    def __str__(self) -> str:
        titles = {"waits": "waited for\n"}
        tables = [titles.get(name, "") + aligned(table) for name, table in self._tables().items()]
        parts = [f"{self._workers}\n{_wrapped(self.verdict)}", *tables, *(_wrapped(line) for line in self._lines())]
        return "\n\n".join(parts)

    @property
    def _workers(self) -> str:
        return f"{self.counters.get('engine', '?')}, {self.counters.get('workers', 0)} workers"

    def _lines(self) -> list[str]:
        lines = []
        if self.slowest_samples:
            slowest = ", ".join(f"{slow.index!r} ({shown(slow.seconds)})" for slow in self.slowest_samples)
            lines.append(f"slowest samples: {slowest}")
        if self.memory:
            had = ", ".join(f"{one.worker}: {one.pss_bytes >> 20} ({one.growth_bytes >> 20:+})" for one in self.memory)
            lines.append(f"memory of workers in MiB (growth): {had}")
        rest = {key: value for key, value in self.counters.items() if value and key not in _SHOWN}
        parts = [f"{key} {_sum(value)}" for key, value in rest.items() if _sum(value)]
        return [*lines, ", ".join(parts)] if parts else lines

    def _tables(self) -> dict[str, _Table]:
        """Return the tables of rates, waits and stages, without empty ones."""
        tables = {"rates": self._rates(), "waits": _waits(self.epoch), "stages": _stages(self.epoch)}
        return {name: table for name, table in tables.items() if table}

    def _rates(self) -> _Table:
        periods = {"this epoch": self.epoch, "last epoch": self.last_epoch, "all": self.total}
        known = {name: period for name, period in periods.items() if period is not None and period.batches}
        if not known:
            return []
        table = [
            ["", *known],
            ["batches", *(f"{period.batches:,}" for period in known.values())],
            ["batches/s", *(f"{period.batches_per_s:,.1f}" for period in known.values())],
            ["samples/s", *(f"{period.samples_per_s:,.0f}" for period in known.values())],
            ["time", *(shown(period.seconds) for period in known.values())],
            ["waited", *(f"{100 * period.stall:.1f} %" for period in known.values())],
            ["start-up", *(shown(period.starting_s) for period in known.values())],
        ]
        if any(period.packed is not None for period in known.values()):
            shares = ["" if period.packed is None else f"{100 * period.packed:.1f} %" for period in known.values()]
            table.append(["rows full", *shares])
        if any(period.worker_utilisation for period in known.values()):
            table.append(["workers busy %", *(_busy(period.worker_utilisation) for period in known.values())])
            table.append(["batches ready", *(f"{period.prefetch_occupancy:.1f}" for period in known.values())])
        return table


def verdict_of(stats: Stats) -> Verdict:
    """Return the verdict in its parts."""
    workers, auto, moves = int(stats.counters.get("workers", 0)), stats.settings.get("auto"), moves_of(stats.settings)
    return judge(stats.judged, worker_count=workers, cores=cores_of(stats.settings), auto=auto, moves=moves)


_Table: TypeAlias = list[list[str]]
_MANY = 8
"""With more workers, only the least and the most busy are shown."""
_SHOWN = ("engine", "workers", "batches", "wait_s")


def shown(seconds: float) -> str:
    """Return a duration as readable text.

    Example:
        >>> shown(0.0000123), shown(0.25), shown(90)
        ('12.3 us', '250 ms', '90.0 s')
    """
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, max(40, min(100, shutil.get_terminal_size((100, 24)).columns)), break_long_words=False)


def _busy(shares: list[float]) -> str:
    percents = [f"{100 * share:.0f}" for share in sorted(shares)]
    if len(shares) > _MANY:  # a number for each would be wider than a terminal
        return f"{percents[0]} to {percents[-1]}"
    return " ".join(f"{100 * share:.0f}" for share in shares)


def _waits(period: Period) -> _Table:
    """Return the causes of waiting after start-up: their shares add up to `stall`."""
    steady_s = period.seconds - period.starting_s
    causes = {cause: waited for cause, waited in period.waits.items() if cause != "start"} if steady_s > 0 else {}
    waits = sorted(causes.items(), key=lambda item: -item[1])
    return [[f"  {cause}", shown(waited), f"{100 * waited / steady_s:.1f} %"] for cause, waited in waits]


def _stages(period: Period) -> _Table:
    if not period.stages:
        return []
    table = [["per batch", "p50", "p90", "p99", "mean"]]
    for name, spread in {"body": period.body, **period.stages}.items():
        if spread.count:
            figures = (spread.p50, spread.p90, spread.p99, spread.mean)
            table.append([f"  {name}", *(shown(figure) for figure in figures)])
    return table


def aligned(table: _Table) -> str:
    """Return a table as text: the first column left-aligned, the others right-aligned."""
    widths = [max(len(line[place]) for line in table) for place in range(len(table[0]))]
    lines = (
        "  ".join(cell.ljust(width) if not place else cell.rjust(width) for place, (cell, width) in enumerate(cells))
        for cells in (zip(line, widths, strict=True) for line in table)
    )
    return "\n".join(line.rstrip() for line in lines)


def _numbers(value: object, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}{key}" if name.endswith("/") or not name else f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for place, inner in enumerate(value):
            yield from _numbers(inner, f"{name}/{place}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value


def _sum(value: object) -> object:
    return sum(value.values()) if isinstance(value, Mapping) else value


def plain(index: object) -> object:
    """Return an index as a plain JSON value, or as its `repr`."""
    item = getattr(index, "item", None)
    index = item() if callable(item) and getattr(index, "size", 1) == 1 else index
    is_plain = isinstance(index, (int, str, bool, type(None))) or (isinstance(index, float) and math.isfinite(index))
    return index if is_plain else repr(index)
