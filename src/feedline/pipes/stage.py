"""Stages: what a pipe consists of. A stage describes samples; a cursor (`cursor.py`) reads those of a stream.

Stages are plain objects that hold their sources and never change; everything that moves is in a cursor. So a pipe can
be iterated over several times at once, and a position is a few numbers.

There are two kinds of stages. A map-style one returns the sample at any place. Places do not end with the dataset:
place p is sample p % len of pass p // len, so repeating a dataset needs no code, and a shuffle can use another order in
each pass. A stream opens a cursor for a lap: the epoch, and how often an outer `repeat` has been through it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.abc.description import Description
from feedline.errors import BadOption
from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import Draws, Lap, Places, Samples

if TYPE_CHECKING:
    from typing_extensions import Self


def depth_after(*sources: Stage) -> int:
    """Return the depth of an operator after these."""
    return 1 + max((source.depth for source in sources), default=-1)


class Stage:
    """One operator of a pipe, or the dataset that it begins with."""

    label = ""
    """Names the operator and its options, for people, errors and statistics."""
    sources: tuple[Stage, ...] = ()
    # Any: plain values.
    fixed: Mapping[str, Any] = MappingProxyType({})
    """The options that determine which sample is at which position: a state must be loaded with the same."""
    depends_on_epoch = False
    """True if this operator gives other samples in another epoch."""

    @property
    def depth(self) -> int:
        """The number of operators up to this one: it keeps the random numbers of operators apart."""
        return depth_after(*self.sources)

    def changes_with_epoch(self) -> bool:
        """True if this operator, or one before it, gives other samples in another epoch."""
        return self.depends_on_epoch or any(source.changes_with_epoch() for source in self.sources)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to datasets that have a `set_epoch`."""
        for source in self.sources:
            source.set_epoch(epoch)

    def datasets(self) -> list[object]:
        """Return the datasets that the pipe begins with."""
        return [dataset for source in self.sources for dataset in source.datasets()]

    def describe(self) -> Description:
        """Return the operators up to this one, with the options that a state must be loaded with."""
        before = [source.describe() for source in self.sources]
        name = self.label.partition("(")[0]
        if len(before) > 1:
            return [{"operator": name, **self.fixed, "sources": before}]
        return [*before[0], {"operator": name, **self.fixed}] if name else before[0]

    def chain(self) -> str:
        """Return the operators as code, from the first dataset on."""
        if not self.sources:
            return f"pipe({self.label})"
        first, *others = self.sources
        if not self.label:
            return first.chain()
        if not others:
            return f"{first.chain()}.{self.label}"
        name, _, options = self.label.partition("(")
        shown = [other.chain() for other in others] + ([options.removesuffix(")")] if options else [])
        return f"{first.chain()}.{name}({', '.join(shown)})"

    def tree(self, depth: int = 0) -> Iterator[str]:
        """Yield a line for each operator, from this one back to the datasets."""
        if self.label:
            size = f": {len(self):,} samples" if not self.sources and isinstance(self, MapStage) else ""
            yield f"{'  ' * depth}{self.label}{size}"
            depth += 1
        for source in self.sources:
            yield from source.tree(depth)


class MapStage(Stage, ABC):
    """Samples at places."""

    def __init__(self, *sources: MapStage, label: str = "", fixed: Mapping[str, Any] | None = None) -> None:
        self.sources: tuple[MapStage, ...] = sources
        self.label, self.fixed = label, fixed or {}

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples of a pass."""

    @abstractmethod
    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        """Return the samples at these places, in their order. Called in any process, from several threads at once."""

    has_columns = False
    """True if `read_columns` may return the samples as columns."""

    hands_on_images = False
    """As `hands_on_images` of `feedline.abc.deferred`."""

    def origin(self, place: int, epoch: int) -> tuple[object, int]:
        """Return the dataset that the sample at a place comes from, and its index there.

        Raises BadOption: it comes from several.
        """
        raise BadOption(f"A sample of {self.label} comes from several.")

    def read_columns(self, places: Places, epoch: int) -> object:
        """As `ColumnSource.read_columns`: None if the samples cannot be read as columns."""
        return None

    def lengths(self, places: Places, epoch: int) -> Places | None:
        """Return the lengths of the documents at these places, if they are known without reading them."""
        return None


class Reordered(MapStage):
    """Samples of another stage at other places: none is changed."""

    def __init__(self, source: MapStage, label: str, fixed: Mapping[str, Any]) -> None:
        super().__init__(source, label=label, fixed=fixed)
        self._source = source
        self.has_columns = source.has_columns
        self.hands_on_images = source.hands_on_images

    @abstractmethod
    def _inner(self, places: Places, epoch: int) -> Places:
        """Return the places in the source."""

    def _inner_epoch(self, epoch: int) -> int:
        """Return the epoch of the source."""
        return epoch

    def __len__(self) -> int:
        return len(self._source)

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        return self._source.read(self._inner(places, epoch), self._inner_epoch(epoch), draws)

    def origin(self, place: int, epoch: int) -> tuple[object, int]:
        (inner,) = self._inner(np.array([place]), epoch)
        return self._source.origin(inner, self._inner_epoch(epoch))

    def read_columns(self, places: Places, epoch: int) -> object:
        return self._source.read_columns(self._inner(places, epoch), self._inner_epoch(epoch))

    def lengths(self, places: Places, epoch: int) -> Places | None:
        return self._source.lengths(self._inner(places, epoch), self._inner_epoch(epoch))


class StreamStage(Stage, ABC):
    """Samples in one order."""

    is_endless: bool
    """True if the stream never ends, so that samples can be skipped without checking that they exist."""
    is_sharded: bool
    """True if the stream splits itself over workers and ranks."""

    def __init__(self, *sources: StreamStage, label: str = "", fixed: Mapping[str, Any] | None = None) -> None:
        self.sources: tuple[Stage, ...] = sources
        self.parts = sources
        self.label, self.fixed = label, fixed or {}
        self.is_endless = bool(sources) and all(source.is_endless for source in sources)
        self.is_sharded = any(source.is_sharded for source in sources)

    _first: StreamStage | None = None
    """The stage that this is a copy of."""

    @property
    def identity(self) -> int:
        """The same number for all copies: workers compare what they find in theirs."""
        return id(self._first or self)

    def copied(self) -> Self:
        """Return a copy that reads its own copies of the iterable datasets, for a worker that is a thread."""
        own = copy.copy(self)
        own.parts = tuple(part.copied() for part in self.parts)
        own.sources = own.parts or self.sources
        own._first = self._first or self
        return own

    @abstractmethod
    def open(self, lap: Lap) -> Cursor:
        """Return a cursor at the beginning."""

    def count(self) -> int | None:
        """Return the number of samples of a lap; None if that is unknown, or endless."""
        return None

    def counts(self) -> list[int] | None:
        """Return the counts of all sources; None if one is unknown."""
        known = [count for part in self.parts if (count := part.count()) is not None]
        return known if len(known) == len(self.parts) else None
