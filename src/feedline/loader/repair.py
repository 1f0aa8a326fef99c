"""Batches whose samples failed: in which order they get others, and what becomes of those that get none.

Used with a policy that catches failures. Decides only; the epoch acts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from feedline.errors import EmptyBatch
from feedline.fetch.guard import neighbour_of
from feedline.loader.account import Account, Treated
from feedline.loader.batch_indices import as_list, count_of, with_item
from feedline.loader.pending import Pending
from feedline.loader.reserve import EATEN, Reserve
from feedline.plan.plan import Plan
from feedline.types import Notes, Result, ResultKind
from feedline.verdicts import Fault

_MOST_NEIGHBOURS = 16
"""Samples that are tried for a batch that has none left and must not be left out."""


@dataclass
class _Short:
    """A batch that lacks samples."""

    pending: Pending | None
    """Its task, which one worker has done in part; None if it was not begun, because it gives samples to others."""
    failed: tuple[int, ...] = ()
    """Places that others are to take."""
    omitted: tuple[int, ...] = ()
    """Places that stay empty."""


@dataclass
class Mended:
    """What is to be done about a batch."""

    ordinal: int
    pending: Pending | None = None
    indices: Any = None
    """What it consists of now; None if nothing is to be made."""
    skip: dict[int, bool] = field(default_factory=dict)
    """Places that stay empty."""
    cancelled: list[int] = field(default_factory=list)
    """Batches ahead that give samples to it, and must not be made as they are."""
    failure: Result | None = None
    """What to raise instead of the batch."""


class Repair:
    """Keeps the batches of an epoch that lack samples.

    Args:
        plan: the epoch's plan; a `Reserve` if samples that follow take the places of those that failed.
        keeps_steps: True if no batch may be left out, because of other ranks.
        dataset: whose samples they are.
        drop_short: True to leave out batches that cannot be filled up.
        batched: False if the plan is of single samples.
        account: of samples that fail.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        keeps_steps: bool = False,
        dataset: Any = None,
        drop_short: bool = False,
        batched: bool = True,
        account: Account | None = None,
    ) -> None:
        self._batched = batched
        self._account = account
        self._reserve = plan if isinstance(plan, Reserve) else None
        self._keeps_steps = keeps_steps
        self._dataset = dataset
        self._drop_short = drop_short and not keeps_steps
        self._short: dict[int, _Short] = {}
        self._faults: dict[int, list[Fault]] = {}
        self._indices: dict[int, Any] = {}
        """What batches consist of that are not delivered."""
        self._treated: dict[int, Treated] = {}
        self._mended: set[int] = set()
        """Batches that took samples of others, or gave them some."""
        self._unfilled: dict[int, int] = {}
        """Places that no other sample was left for."""
        self._tried: dict[int, int] = {}
        """Neighbours that were tried for batches that have no other samples."""
        self.finished: dict[int, Result] = {}
        """Batches that took samples of others. They are delivered when all before them are: a state that is saved in
        between would not say whose samples they took."""
        self.voids: dict[int, Result] = {}
        """Batches of which nothing is left, to be passed over when it would be their turn."""

    @classmethod
    def of(cls, plan: Plan, account: Account | None, *, batched: bool, already: Collection[int] = ()) -> Repair | None:
        """Return what looks after an epoch; None if samples that fail are just raised.

        Args:
            plan: the epoch's plan.
            account: of samples that fail.
            batched: False if the plan is of single samples.
            already: batches that were delivered before, out of turn.
        """
        if isinstance(plan, Reserve):
            plan.exclude(already)
        elif account is None or not account.guards:
            return None
        if account is None:
            return cls(plan, batched=batched)
        return cls(
            plan,
            keeps_steps=account.keeps_steps,
            dataset=account.dataset,
            drop_short=account.drop_short,
            batched=batched,
            account=account,
        )

    def _list(self, indices: Any) -> list[Any]:
        return as_list(indices, batched=self._batched)

    def checkpoint(self) -> Any:
        """Return what `undo` needs to forget everything that is done about a batch from now on."""
        return None if self._reserve is None else self._reserve.checkpoint()

    def undo(self, checkpoint: Any, ordinal: int) -> None:
        """Forget what was done about a batch: it was interrupted, and is made from the beginning."""
        if self._reserve is not None:
            self._reserve.undo(checkpoint)
        self.done(ordinal)
        self._short.pop(ordinal, None)

    def may_begin(self, ordinal: int, indices: Any) -> bool:
        """Say whether a batch can be made as it is; otherwise it is kept here until its turn."""
        if indices is EATEN or (self._reserve is not None and self._reserve.is_eaten(ordinal)):
            self.voids[ordinal] = Result(ResultKind.SHORT, -1, -1)
            return False
        if self._reserve is not None and self._reserve.is_source(ordinal):
            self._short[ordinal] = _Short(None)
            return False
        return True

    def is_whole(self, ordinal: int, indices: Any) -> bool:
        """True if a batch consists of what the plan says: it neither gives samples to others nor has given them."""
        return indices is not EATEN and (self._reserve is None or not self._reserve.is_source(ordinal))

    def begin(self, ordinal: int, treated: Treated) -> None:
        """Note what a batch consists of that is about to be made, and who of it is known to fail."""
        self._indices[ordinal] = treated.indices
        if treated.known:
            self._treated.setdefault(ordinal, Treated(None)).known.update(treated.known)

    def treated(self, ordinal: int) -> Treated | None:
        """Return who of a batch was known to fail."""
        return self._treated.get(ordinal)

    def count_of(self, ordinal: int) -> int:
        """Return how many samples a batch was to have."""
        indices = self._indices.get(ordinal)
        if indices is None:
            return 0
        # Who was to make room for another is counted as lost, and not once more if there was no other.
        return count_of(indices, batched=self._batched) - self._unfilled.get(ordinal, 0)

    def done(self, ordinal: int) -> None:
        """Forget a batch that was delivered or passed over."""
        for kept in (self._indices, self._faults, self._treated, self._tried, self._unfilled, self.voids):
            kept.pop(ordinal, None)
        self._mended.discard(ordinal)
        if self._reserve is not None:
            self._reserve.done(ordinal)

    def answered(self, pending: Pending, result: Result, ready: dict[int, Result]) -> None:
        """Take an answer; a batch that is complete goes to `ready`, or to `finished` if it had to be mended."""
        ordinal = pending.ordinal
        notes = result.notes
        if result.kind is ResultKind.SHORT:
            self._faults.setdefault(ordinal, []).extend([] if notes is None else notes.faults)
            pending.faults = []  # they have been said
            pending.owner = None  # which refers to this: no cycle for the garbage collector while it waits
            self._short[ordinal] = _Short(pending, *(((), ()) if notes is None else (notes.failed, notes.omitted)))
            return
        before = self._faults.pop(ordinal, None)
        if before:
            result.notes = notes or Notes()
            result.notes.faults = [*before, *result.notes.faults]
        (self.finished if ordinal in self._mended else ready)[ordinal] = result

    def has_work(self, expected: int) -> bool:
        """True if a batch lacks samples, or is to be passed over now."""
        return bool(self._short) or expected in self.voids or expected in self.finished

    def next_mended(self, under_way: Collection[int]) -> Mended | None:
        """Return what to do about the next batch that lacks samples; None if none can be dealt with yet.

        Batches are dealt with strictly in order, when all before them are complete: which samples they get must not
        depend on who was quicker.
        """
        if not self._short:
            return None
        ordinal = min(self._short)
        if any(number < ordinal for number in under_way):
            return None
        short = self._short.pop(ordinal)
        self._mended.add(ordinal)
        mended = self._rest(ordinal) if short.pending is None else self._refill(ordinal, short, short.pending)
        if self._reserve is not None:
            self._reserve.mark(ordinal)
        return mended

    def _take(self, mended: Mended, count: int) -> list[Any]:
        """Take samples of batches ahead, and note what becomes of these."""
        if self._reserve is None or not count:
            return []
        taken, touched = self._reserve.take(mended.ordinal, count)
        for ordinal in touched:
            begun = self._indices.pop(ordinal, None) is not None or ordinal in self._short
            if begun:
                mended.cancelled.append(ordinal)
                self._faults.pop(ordinal, None)  # it is made again, and they are found again
                self._treated.pop(ordinal, None)
                self._short[ordinal] = _Short(None)
        for ordinal in [ordinal for ordinal in self._short if self._reserve.is_eaten(ordinal)]:
            del self._short[ordinal]
            self.voids[ordinal] = Result(ResultKind.SHORT, -1, -1)
        return taken

    def _rest(self, ordinal: int) -> Mended:
        """Fill up the batch that has given samples to others."""
        assert self._reserve is not None
        mended = Mended(ordinal)
        rest, used = self._reserve.rest_of(ordinal)
        samples = rest + self._take(mended, used)
        if samples and not (self._drop_short and len(samples) < len(rest) + used):
            mended.indices = samples if self._batched else samples[0]
        else:
            self._leave_out(ordinal)
        return mended

    def _refill(self, ordinal: int, short: _Short, pending: Pending) -> Mended:
        """Put samples that follow into the places of those that failed."""
        mended = Mended(ordinal, pending)
        indices = pending.task.indices
        trouble = None if self._account is None else self._account.hopeless(self._faults.get(ordinal, []))
        if trouble is not None:
            return self._fail(mended, pending, trouble)
        skip = dict.fromkeys(short.omitted, False)
        others = self._take(mended, len(short.failed))
        for place, other in zip(short.failed, others, strict=False):
            indices = with_item(indices, place, other, batched=self._batched)
        skip.update(dict.fromkeys(short.failed[len(others) :], False))
        self._unfilled[ordinal] = self._unfilled.get(ordinal, 0) + len(short.failed) - len(others)
        lost = not short.failed and not others  # nothing was to be refilled, yet there is no batch
        too_few = self._drop_short and len(others) < len(short.failed)
        if lost or too_few or len(skip) >= len(self._list(indices)):
            return self._empty(mended, pending)
        mended.indices, mended.skip = indices, skip
        return mended

    def _empty(self, mended: Mended, pending: Pending) -> Mended:
        """Deal with a batch of which nothing is left: it is passed over, unless ranks would get out of step."""
        ordinal = mended.ordinal
        if not self._keeps_steps:
            mended.pending = None
            self._leave_out(ordinal)
            return mended
        tried = self._tried[ordinal] = self._tried.get(ordinal, 0) + 1
        first = self._list(pending.task.indices)[0]
        faults = self._faults.get(ordinal, [])
        whole = any(fault.stage == "collate" for fault in faults)
        names = "\n".join(f"  {fault}" for fault in faults)
        error = EmptyBatch(
            f"No sample of batch {ordinal} is left, and it cannot be left out, because ranks would get out of step.\n"
            f"{names}"
        )
        other = None if whole or tried > _MOST_NEIGHBOURS else neighbour_of(first, self._dataset, error)
        if other is None:
            return self._fail(mended, pending, error)
        mended.indices = with_item(pending.task.indices, 0, other, batched=self._batched)
        mended.skip = dict.fromkeys(range(1, len(self._list(pending.task.indices))), False)
        return mended

    def _fail(self, mended: Mended, pending: Pending, error: Exception) -> Mended:
        """Have an error raised in place of a batch."""
        notes = Notes(faults=self._faults.pop(mended.ordinal, []))
        mended.failure = Result(ResultKind.FAILED, pending.worker, -1, error, notes=notes)
        return mended

    def _leave_out(self, ordinal: int) -> None:
        notes = Notes(faults=self._faults.pop(ordinal, []))
        self.voids[ordinal] = Result(ResultKind.SHORT, -1, -1, notes=notes)

    def close(self) -> None:
        """Forget everything: the epoch was left."""
        self._short.clear()
        self.finished.clear()
        self.voids.clear()
        self._faults.clear()
        self._indices.clear()
