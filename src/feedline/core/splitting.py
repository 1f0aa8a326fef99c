"""Splitting: several workers fill rows of one batch.

The first batch of each size is made by one worker and shows the layout: which arrays there are, and where they lie in
a slot. From then on a batch of that size is cut into parts, each worker gets the places of its rows, and the batch is
whole when all parts are done. Rows that do not come out as expected (another shape or type) make the batch be done
again by one worker. Only the default collate function may be split: it treats rows alike and independently.
"""

from __future__ import annotations

import marshal
from dataclasses import dataclass, field
from typing import Any

from feedline.abc.framework import Framework
from feedline.core.batch_indices import rows_of
from feedline.types import Draw, IndexBlock, Parcel, Part, Result, ResultKind

Parts = list[tuple[int, Any, Part]]
"""Of each part its first row, its indices, and the places of its rows."""


@dataclass(slots=True)
class Group:
    """The parts of one batch."""

    indices: Any
    slot: int
    header: bytes
    used: int
    remaining: int
    trouble: Result | None = None
    """The first part that failed."""
    misfit: bool = False
    """True if a part did not come out as expected, or was lost: the batch has to be made as a whole."""
    last: Result | None = None
    """The part that was answered last."""
    draw: Draw = field(default_factory=lambda: Draw(0))
    """Where the random numbers of the whole batch come from."""

    def answered(self, result: Result) -> bool:
        """Take the answer of one part; returns True if it was the last."""
        self.remaining -= 1
        self.last = result
        if result.kind is ResultKind.FAILED and self.trouble is None:
            self.trouble = result
        self.misfit = self.misfit or result.kind is ResultKind.MISFIT
        return not self.remaining

    def result(self, worker: int, task_id: int) -> Result:
        """Return what became of the batch, once no part remains."""
        if self.trouble is not None:
            return self.trouble
        result = Result(ResultKind.DONE, worker, task_id, Parcel(self.header, self.slot, self.used))
        last = self.last
        if last is not None:  # for which the others had to wait
            result.busy_ns, result.times, result.first = last.busy_ns, last.times, last.first
        return result


class Splitter:
    """Knows the layouts of batches and cuts tasks into parts.

    Args:
        framework: the array library.
        part_count: into how many parts.
    """

    def __init__(self, framework: Framework, part_count: int) -> None:
        self._framework = framework
        self._part_count = part_count
        self._layouts: dict[int, tuple[bytes, Any]] = {}
        self._unlike: set[int] = set()

    def learn(self, indices: Any, parcel: Parcel) -> None:
        """Remember the layout of a batch that one worker made."""
        if not _is_rows(indices):
            return
        count, lies_in_slot = len(indices), parcel.slot >= 0 and parcel.reader is None
        if count in self._layouts or count in self._unlike or parcel.header[0] != 2 or not lies_in_slot:
            return
        description = marshal.loads(memoryview(parcel.header)[1:])
        if self._framework.rows_of(description, 0, count, count) is not None:
            self._layouts[count] = (parcel.header, description)

    def forget(self, indices: Any) -> None:
        """Drop a layout that did not hold, for good: batches of this size are not alike."""
        self._layouts.pop(len(indices), None)
        self._unlike.add(len(indices))

    def cut(self, indices: Any, slot: int) -> tuple[Group, Parts] | None:
        """Cut a task into parts; None if its layout is not known or it is too small."""
        if slot < 0 or not _is_rows(indices):
            return None
        count = len(indices)
        known = self._layouts.get(count)
        if known is None or count < self._part_count:
            return None
        header, description = known
        parts = []
        used = 0
        for number in range(self._part_count):
            start = count * number // self._part_count
            stop = count * (number + 1) // self._part_count
            part = self._framework.rows_of(description, start, stop, count)
            assert part is not None
            used = max(used, *(offset + size for offset, size in part.places))
            parts.append((start, rows_of(indices, start, stop), part))
        return Group(indices, slot, header, used, len(parts)), parts


def _is_rows(indices: Any) -> bool:
    return type(indices) is IndexBlock or isinstance(indices, (list, tuple))
