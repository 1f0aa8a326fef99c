"""`pack`: documents of different lengths in rows of one length.

Documents are read in windows, and the rows of a window are planned from the lengths of its documents. If the lengths
are known without reading the documents, as in a token file, a window consists of references, and a document is read
when its row is made: then each worker reads only what its own rows need.

A window is described by where its first document is: the state of the source at some earlier point, and how many
documents to skip from there. With "concat", the tokens after the last full row are carried into the next window, which
then begins with a part of a document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count as count_from
from itertools import repeat
from typing import NamedTuple

import numpy as np

from feedline.errors import CollateError
from feedline.pipes.calling import agree
from feedline.pipes.cursor import Cursor, up_to_failure
from feedline.pipes.lap import CursorState, Draws, Lap, Places, Samples
from feedline.pipes.stage import MapStage, StreamStage
from feedline.randomness.scope import current_scope
from feedline.randomness.scope import stage as timed
from feedline.system.failures import is_last
from feedline.text.packing import Plan, build, document_lengths, plan
from feedline.text.packing.documents import Document
from feedline.text.packing.planning import Strategy, TooLong

_EXACT = 1 << 16
"""The most documents for which rows are counted. With more, their number is estimated from the first ones."""


@dataclass(frozen=True)
class PackOptions:
    """How documents are packed; see `Pipe.pack`."""

    length: int
    strategy: Strategy
    window: int
    too_long: TooLong
    tokens: str
    # What `build` takes: a token id, or one value for each field.
    pad: float | Mapping[str, float]
    labels: bool
    mask_first: bool

    def __post_init__(self) -> None:
        plan([], self.length, self.strategy, too_long=self.too_long)  # checks them

    def plan(self, lengths: Places) -> Plan:
        """Plan rows for documents, given how many tokens of each are packed."""
        return plan(lengths, self.length, self.strategy)

    def fitting(self, lengths: Places) -> Places:
        """Return how many tokens of each document are packed. Raises CollateError: one is too long."""
        if self.too_long == "cut" or not len(lengths) or lengths.max() <= self.length:
            return lengths
        if self.too_long == "raise":
            raise CollateError(
                f"A document has {lengths.max()} tokens, but a row holds {self.length}. Increase `length`, or set "
                "too_long to 'cut', 'truncate' or 'drop'."
            )
        return np.minimum(lengths, self.length) if self.too_long == "truncate" else lengths * (lengths <= self.length)

    def build(self, rows: Plan, documents: Mapping[int, Document] | Samples) -> Samples:
        """Return rows as samples."""
        batch = build(rows, documents, tokens=self.tokens, pad=self.pad, labels=self.labels, mask_first=self.mask_first)
        return [{name: field[number] for name, field in batch.items()} for number in range(len(rows))]

    def __str__(self) -> str:
        return f"pack({self.length}, strategy={self.strategy!r})"


class Reference(NamedTuple):
    """A document that is not read yet."""

    place: int
    length: int


class References(MapStage):
    """The documents of a map-style stage whose lengths are known, as references."""

    def __len__(self) -> int:
        return len(self.sources[0])

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        lengths = self.sources[0].lengths(places, epoch)
        assert lengths is not None
        return list(map(Reference, places.tolist(), lengths.tolist()))


class Packed(StreamStage):
    """Packed rows of the documents of a stream.

    Args:
        source: the documents, or references to them.
        options: how to pack.
        documents: reads the documents of references; None if `source` has the documents themselves.
    """

    def __init__(self, source: StreamStage, options: PackOptions, documents: MapStage | None = None) -> None:
        names = ("length", "strategy", "window", "too_long", "tokens")
        super().__init__(source, label=str(options), fixed={name: getattr(options, name) for name in names})
        self.options = options
        self.documents = documents

    def count(self) -> int | None:
        documents, total = self.documents, self.parts[0].count()
        if documents is None or total is None:
            return None
        some = documents.lengths(np.arange(min(total, _EXACT)), 0)
        if some is None:
            return None
        if not len(some):
            return 0
        window = self.options.window
        if self.options.strategy == "concat":
            window = len(some)
        rows = sum(len(self.options.plan(some[start : start + window])) for start in range(0, len(some), window))
        return -(-rows * total // len(some))

    def open(self, lap: Lap) -> Cursor:
        return _PackCursor(self.parts[0].open(lap), self, lap)


class _Document(NamedTuple):
    """A document of a window."""

    content: Document | Reference
    length: int
    base: CursorState
    """A state of the source."""
    skipped: int
    """How many documents of the source lie between that state and this one."""
    number: int
    """How many documents of the source come before that state."""


class _PackCursor(Cursor):
    def __init__(self, source: Cursor, stage: Packed, lap: Lap) -> None:
        self._source = source
        self._stage = stage
        self._options = stage.options
        self._lap = lap
        self._window: list[_Document] = []
        self._offset = 0
        """Tokens of the first document that are packed already."""
        self._carried = 0
        """Documents that were carried over from the previous window."""
        self._given = 0
        """Rows of the window that were handed out."""
        self._failures = 0
        """Documents read for this window that failed. They are not in it."""
        self._plan: Plan | None = None
        self._base = source.state()
        self._base_number = 0
        """Documents of the source before `_base`."""
        self._taken = 0
        """Documents taken from the source since `_base`."""
        self._unchecked: Samples = []
        """Documents of the source that come next."""
        self._has_source_failed = False
        self._is_last = False

    def take(self, count: int) -> Samples:
        while True:
            planned = self._planned()
            if self._given < len(planned):
                return self._rows(planned, count)
            if self._is_last:
                return []
            self._next_window(planned)

    def _planned(self) -> Plan:
        """Return the rows of the window that can be made now: with "concat", all but the last until all is read."""
        if self._plan is None:
            self._read(self._carried + self._options.window)
            with timed(self._stage.label):
                made = self._options.plan(self._lengths())
                if self._options.strategy == "concat" and not self._is_last:
                    made = made[: made.tokens // self._options.length]
                self._plan = made
        return self._plan

    def _read(self, count: int) -> None:
        """Read documents until the window has `count`. Raises the exception of a document that fails."""
        while len(self._window) < count and (self._unchecked or not self._is_last):
            if not self._unchecked:
                self._unchecked = self._take(count - len(self._window))
                self._is_last = not self._unchecked
                continue
            some, lengths = self._measured()
            number = self._base_number
            agree((self._stage.identity, self._lap), self._stage.label, number + self._taken, lengths.tolist())
            positions = repeat(self._base), count_from(self._taken), repeat(number)
            self._window += map(_Document, some, lengths.tolist(), *positions)
            self._taken += len(some)
            del self._unchecked[: len(some)]

    def _measured(self) -> tuple[Samples, Places]:
        """Return the next documents and their lengths: those before one that cannot be packed, or some of them.

        Raises the exception of the next document if that one cannot be packed, and goes past it.
        """
        some = self._unchecked
        while True:
            try:
                return some, self._lengths_of(some)
            except Exception:
                if len(some) == 1:
                    self._has_source_failed = False
                    self._failures += 1
                    self._taken += 1
                    del self._unchecked[0]
                    raise
            some = some[: len(some) // 2]

    def _take(self, count: int) -> Samples:
        try:
            return self._source.take(count)
        except Exception:
            self._has_source_failed = True
            self._failures += 1
            self._taken += 1
            raise

    def _lengths_of(self, contents: Samples) -> Places:
        if self._stage.documents is None:
            lengths = document_lengths(contents)
        else:
            lengths = np.array([reference.length for reference in contents], np.int64)
        return self._options.fitting(lengths)

    def _lengths(self) -> Places:
        lengths = np.array([document.length for document in self._window], np.int64)
        if self._offset:
            lengths[0] -= self._offset
        return lengths

    def _next_window(self, planned: Plan) -> None:
        """Begin another window; with "concat", with the tokens after the last full row of this one."""
        lengths = self._lengths()
        left = int(lengths.sum()) - planned.tokens if self._options.strategy == "concat" else 0
        keep = len(lengths)
        while left > 0:
            keep -= 1
            left -= int(lengths[keep])
        self._offset = -left + (self._offset if keep == 0 else 0)
        self._window = self._window[keep:]
        self._carried = len(self._window)
        self._begin()

    def _begin(self) -> None:
        self._base_number += self._taken
        self._base, self._taken = self._source.state(), 0
        self._plan, self._given, self._failures = None, 0, 0

    def _rows(self, planned: Plan, count: int) -> Samples:
        first = self._given
        last = min(first + count, len(planned))
        made, failure = up_to_failure(self._built, planned[first:last])
        if failure is not None and not made:
            self._given += 1
            raise failure
        self._given += len(made)
        return made

    def _built(self, rows: Plan) -> Samples:
        numbers = np.unique(rows.documents)
        documents = dict(zip(numbers.tolist(), self._documents(numbers), strict=True))
        with timed(self._stage.label):
            if self._offset and len(numbers) and numbers[0] == 0:
                starts = np.where(rows.documents == 0, rows.starts + self._offset, rows.starts)
                rows = Plan(rows.documents, starts, rows.counts, rows.row_starts, rows.length)
            made = self._options.build(rows, documents)
        if (scope := current_scope()) is not None:
            tokens, places = scope.packed
            scope.packed = tokens + rows.tokens, places + len(rows) * rows.length
        return made

    def _documents(self, numbers: Places) -> Samples:
        chosen = [self._window[number].content for number in numbers.tolist()]
        if self._stage.documents is None:
            return chosen
        places = np.array([reference.place for reference in chosen], np.int64)
        return self._stage.documents.read(
            places, self._lap.epoch, Draws(places.tolist(), seeds=True, branch=self._lap.branch)
        )

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count:
            try:
                planned = self._planned()
            except Exception as exc:  # raised where the document is due, which is not here
                if is_last(exc):
                    raise
                skipped += 1
                continue
            past = min(count - skipped, len(planned) - self._given)
            self._given += past
            skipped += past
            if skipped < count:
                if self._is_last:
                    break
                self._next_window(planned)
        return skipped

    def try_again(self) -> bool:
        if self._plan is not None:  # a row failed
            self._given -= 1
            return True
        if not self._has_source_failed or not self._source.try_again():
            return False
        self._failures -= 1
        self._taken -= 1
        return True

    def state(self) -> CursorState:
        # Between windows, the next one begins where the source is. A window that has begun is read again.
        first = self._window[0] if self._window else None
        return {
            "base": self._base if first is None else first.base,
            "number": self._base_number if first is None else first.number,
            "skipped": 0 if first is None or not self._carried else first.skipped,
            "offset": self._offset,
            "carried": self._carried,
            "given": self._given,
            "failures": self._failures,
        }

    def restore(self, state: CursorState) -> None:
        self._source.restore(state["base"])
        self._base, self._taken = state["base"], self._source.skip(state["skipped"])
        self._base_number = state["number"]
        self._offset, self._carried = state["offset"], state["carried"]
        self._window, self._unchecked, self._is_last = [], [], False
        self._read_past_failures(self._carried, None)
        self._begin()
        self._given = state["given"]
        self._read_past_failures(self._carried + self._options.window, state["failures"])

    def _read_past_failures(self, count: int, failures: int | None) -> None:
        """Read documents. Stop after a number of failures, which were raised when they were due; None for all."""
        left = failures
        while left is None or left > 0:
            try:
                self._read(count)
            except Exception as exc:
                if is_last(exc):
                    raise
                left = None if left is None else left - 1
                continue
            return
