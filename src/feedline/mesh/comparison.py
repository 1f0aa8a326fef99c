"""Batches that are compared with those of the peers, every so many steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Protocol

from feedline.errors import RankError
from feedline.mesh.data_rank import DataRank
from feedline.mesh.digest import Report, difference, fields_of
from feedline.mesh.meeting import named, peers_of


class Batches(Protocol):
    """The batches of this rank."""

    @property
    def leaving(self) -> bool: ...

    # Any: batches of any kind.
    def __next__(self) -> Any: ...

    def close(self) -> None: ...


class ComparedBatches(Iterator[Any]):
    """Delivers the batches of an iteration, and compares them with those of the peers.

    A batch is compared when the next one is requested. So a rank that waits for a peer has lost nothing if it is
    interrupted, and its state is that of the training loop.

    Args:
        source: the batches.
        place: this process, and how often to compare.
        losses: returns what was skipped or replaced so far: how many samples, and the last of them.
        epoch: the epoch of the iteration.
        fields: which fields the batches have; None for all.
    """

    def __init__(
        self,
        source: Batches,
        place: DataRank,
        losses: Callable[[], tuple[int, tuple[str, ...]]],
        epoch: int,
        fields: object,
    ) -> None:
        self._source, self._place, self._losses, self._fields = source, place, losses, fields
        self.begin(epoch)

    def begin(self, epoch: int) -> None:
        """Begin another epoch."""
        self._epoch = epoch
        self._step = 0
        self._report: Report | None = None
        """What is compared before the next batch is taken."""
        self._is_over = False

    @property
    def leaving(self) -> bool:
        """True once the iterator was closed."""
        return self._source.leaving

    def close(self) -> None:
        """End the iteration of this rank; see `OneCallerBatches.close`."""
        self._source.close()

    def __next__(self) -> Any:
        report, self._report = self._report, None
        if report is not None:
            self._compare(report)
        try:
            batch = self._source.__next__()
        except StopIteration:
            if not self._is_over and not self._source.leaving:
                self._is_over = True
                self._compare(Report(self._epoch, self._step, ended=True))
            raise
        self._step += 1
        if self._step == 1 or self._step % self._place.check == 0:
            self._report = self._report_of(batch)
        return batch

    # Any: a batch of any kind.
    def _report_of(self, batch: Any) -> Report:
        fields = self._fields
        if fields == ():  # this rank may have read nothing
            return Report(self._epoch, self._step)
        if callable(fields):  # its fields may be any part of those of the peers
            found = {}
        elif isinstance(fields, tuple):
            found = dict(zip(map(str, fields), fields_of(batch).values(), strict=True))
        else:
            found = fields_of(batch)
        count, lost = self._losses()
        return Report(self._epoch, self._step, fields=found, lost=lost, lost_count=count)

    def _compare(self, report: Report) -> None:
        """Raise RankError if the peers have something else to report."""
        reports = {rank: Report(**found) for rank, found in peers_of(self._place).exchange(asdict(report)).items()}
        found = difference(reports)
        if found is not None:
            raise RankError(
                f"{named(self._place.peers).capitalize()} share their batches ({self._place}), but {found}. "
                "Give them the same dataset, with files in the same order (os.listdir and glob do not sort), the same "
                "options, and random numbers from feedline.rng() or from random, NumPy and torch, which follow seed=. "
                "An on_error= policy must find the same samples bad on all of them."
            )
