"""How far packing is, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedline.packing.digest import START, chained
from feedline.packing.prepare import Item

_REASONS_KEPT = 20
_REASON_LENGTH = 400


@dataclass(frozen=True)
class Unused:
    """What is in a source and is not packed, without being a fault."""

    files: int = 0
    """Files that are no samples."""
    notes: tuple[str, ...] = ()
    """What it is, and why: the first three files of each kind by name."""

    def and_files(self, count: int, note: str) -> Unused:
        """Return it with some files more."""
        return Unused(self.files + count, (*self.notes, note))


@dataclass(frozen=True)
class Packed:
    """What `pack` did."""

    path: Path
    format: str
    count: int
    """Samples in the output."""
    digest: str
    """Of all samples, in order: equal for equal samples, whatever the format."""
    size: int
    """Bytes of the output."""
    skipped: int = 0
    """Samples that were left out: they could not be read, or did not fit."""
    reasons: tuple[str, ...] = ()
    """Which these were, and why: the first 20."""
    resumed: int = 0
    """Samples that an earlier, interrupted run had written."""
    seconds: float = 0.0
    line: str = ""
    """The line of Python that reads it."""
    unused: Unused = field(default_factory=Unused)
    """What is in the source and was not packed, such as files that are no pictures in a folder of pictures."""


@dataclass(frozen=True)
class Stage:
    """How far `pack` is, for whoever shows it."""

    name: str
    """"packing" or "checking"."""
    done: int
    total: int | None
    """None if the dataset has no length."""


@dataclass
class Progress:
    """Where a run is. A note of it is made at each checkpoint."""

    loader: Any = None  # a state of the loader
    done: int = 0
    """Items of the loader's next batch that were written as well."""
    taken: int = 0
    """Samples of the dataset that were dealt with."""
    count: int = 0
    digest: str = START
    form: str = "dict"
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)
    shard: dict[str, Any] = field(default_factory=lambda: {"count": 0, "digest": START, "size": 0})

    def add(self, item: Item, digest: bytes) -> None:
        """Count a sample that is written, whose digest this is."""
        self.taken += 1
        self.count += 1
        self.form = item.form
        self.digest = chained(self.digest, [digest])
        self.shard["count"] += 1
        self.shard["size"] += item.size
        self.shard["digest"] = chained(self.shard["digest"], [digest])

    def leave_out(self, called: Callable[[], str], reason: str) -> None:
        """Count a sample that is left out, and note why, with its name, of the first ones."""
        self.taken += 1
        self.skipped += 1
        if len(self.reasons) < _REASONS_KEPT:
            self.reasons.append(shortened(f"{called()}: {reason}"))


def shortened(text: str) -> str:
    """Return a text in one line of bounded length."""
    text = " ".join(text.split())
    return text if len(text) <= _REASON_LENGTH else f"{text[: _REASON_LENGTH - 3]}..."
