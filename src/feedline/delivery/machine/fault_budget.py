"""Account of failed samples: the log, the quarantine, and whether the budget is spent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedline.abc.faults import ErrorPolicy, Fault
from feedline.abc.source import changes_with_epoch
from feedline.delivery.machine.batch_indices import as_list, reusable, with_item
from feedline.errors import EmptyBatch, TooManyBadSamples
from feedline.faults.log import FaultLog
from feedline.faults.policy import exceeded
from feedline.types import Result, State
from feedline.workers.fetch.guard import neighbour_of

_LONGEST_CHAIN = 16
"""Maximum length of a chain of replacements. If a policy's replacements form a cycle, it decides again after these."""

_MOST_NEIGHBOURS = 16
"""Samples to try as a substitute for a batch that has none left and must not be left out."""

_MOST_NAMED = 10
"""Faults that an error message lists; the exception holds all."""


Mark = tuple[int, int, int]
"""Samples seen, samples lost, and faults in the log."""


@dataclass(slots=True)
class Treated:
    """A requested batch, after applying what is known about samples that fail."""

    indices: Any
    """What to request."""
    skip: tuple[int, ...] = ()
    """Places to leave out."""
    known: int = 0
    """How many of its samples are left out or replaced."""
    faults: tuple[Fault, ...] = ()
    """Its faults."""
    neighbours: int = 0
    """How many substitutes were tried so far."""


class FaultBudget:
    """The failed samples of one loader.

    Args:
        policy: decides what to do with them.
    """

    def __init__(self, policy: ErrorPolicy) -> None:
        self.use(policy)
        self.log = FaultLog()
        self._seen = 0
        self._lost = 0
        self._approved = (0, 0)
        """Both counts as of the last batch within the budget: a batch that exceeds it is not delivered."""
        self.counts_known = True
        """False if samples known to fail are not counted when they come again: an endless order."""
        self.dataset: object = None
        """The dataset, if its samples have indices; None for an iterable dataset."""
        self.keeps_steps = False
        """True if all ranks must deliver the same number of batches."""

    def copy(self) -> FaultBudget:
        """Return an empty account with the same policy, for a copied loader."""
        return FaultBudget(self.policy)

    def use(self, policy: ErrorPolicy) -> None:
        """Decide by another policy from now on."""
        self.policy = policy
        self.guards = not policy.never_catches
        """True if the policy may handle failed samples instead of just raising."""

    def begin_epoch(self, number: int, *, resumes: bool) -> None:
        """Reset the counts for a new epoch, or keep them when resuming from a state.

        If an index may mean another sample in this epoch, only samples that failed in this one stay in quarantine.
        """
        if not resumes:
            self._seen, self._lost = self._approved = 0, 0
        if self.log.quarantined_count and changes_with_epoch(self.dataset):
            self.log.release_other_epochs(number)

    def mark(self) -> Mark:
        """Return the current position of the account, for `state`."""
        return (*self._approved, self.log.total)

    def state(self, mark: Mark | None = None) -> State:
        """Return the log and the counts of the budget as plain values; {} if there is nothing to save.

        Args:
            mark: the position to save; None for the current one.
        """
        seen, lost, total = mark or self.mark()
        state = self.log.state(total)
        return {**state, "seen": seen, "lost": lost} if self.guards and (state or seen) else state

    def restore(self, state: Any) -> None:
        """Restore the account from a state.

        Raises:
            BadState: the state is invalid; the account is unchanged.
        """
        self.log.restore(state)
        self._seen, self._lost = self._approved = state.get("seen", 0), state.get("lost", 0)

    def treat(self, indices: object, *, batched: bool) -> Treated:
        """Skip or replace samples that are known to fail before they are requested."""
        log = self.log
        indices = reusable(indices) if batched else indices
        treated = Treated(indices)
        if not log.quarantined_count or not self.guards:
            return treated
        items = as_list(indices, batched=batched)
        if not log.has_any_of(items):
            return treated
        for place, index in enumerate(items):
            fault = log.quarantined_as(index)
            if fault is not None:
                treated.known += 1
            for _ in range(_LONGEST_CHAIN):  # a replacement may fail later
                if fault is None or fault.action != "replace":
                    break
                treated.indices = with_item(treated.indices, place, fault.replacement, batched=batched)
                fault = log.quarantined_as(fault.replacement)
            if fault is not None and fault.action == "skip":
                treated.skip += (place,)
        return treated

    def instead_of(self, empty: Treated, *, batched: bool) -> Treated:
        """Return a substitute for a batch that has no samples left: the next sample after its last one.

        Raises:
            EmptyBatch: there is none, or too many were tried.
        """
        error = EmptyBatch(
            "A batch has no samples left, and ranks would get out of step if it were skipped. Fix what failed, or "
            f"remove these samples from the sampler or dataset.\n{_named(empty.faults)}"
        )
        tried = empty.neighbours
        has_failed_together = any(fault.stage == "collate" for fault in empty.faults)  # no other sample would help
        other = None if has_failed_together or self.dataset is None else as_list(empty.indices, batched=batched)[-1]
        while other is not None and tried < _MOST_NEIGHBOURS:
            tried += 1
            other = neighbour_of(other, self.dataset, error)
            if other is not None and self.log.quarantined_as(other) is None:
                return Treated([other] if batched else other, faults=empty.faults, neighbours=tried)
        raise error

    def enter(self, result: Result, count: int, epoch: int, treated: Treated | None = None) -> None:
        """Log the faults that an answer reports, once.

        Args:
            result: the answer.
            count: how many samples it covers.
            epoch: the number of the epoch.
            treated: what was requested, if failed samples are not just raised.
        """
        notes = result.notes
        faults: Iterable[Fault] = () if notes is None else notes.faults
        if treated is not None:
            treated.faults += tuple(faults)
            self._lost += treated.known if self.counts_known else 0
        if notes is not None and notes.faults:
            notes.faults = []
        self.write(faults, count, epoch)

    def write(self, faults: Iterable[Fault], count: int, epoch: int) -> None:
        """Log faults, and count the samples they are among."""
        self._seen += count
        for fault in faults:
            # A sample that occurs twice may have been requested twice before it was known to fail.
            known = fault.lost and fault.stage != "collate" and self.log.quarantined_as(fault.index) is not None
            has_index = self.dataset is not None
            if not (known and has_index):
                self.log.append(replace(fault, epoch=epoch), quarantine=has_index)
            # A batch that could not be collated loses all its samples.
            of_batch = fault.stage == "collate" and isinstance(fault.index, list)
            self._lost += fault.lost * (len(fault.index) if of_batch else 1)

    def check(self, *, ended: bool = False) -> None:
        """Raise when the policy's budget is spent.

        Raises:
            TooManyBadSamples: too many samples were lost, or too large a share of them.
        """
        reason = exceeded(self.policy, self._lost, self._seen, ended=ended) if self._lost else None
        if reason is None:
            self._approved = self._seen, self._lost
        else:
            raise _too_many(reason, [fault for fault in self.log if fault.lost])


def _too_many(reason: str, faults: list[Fault]) -> TooManyBadSamples:
    return TooManyBadSamples(f"{reason}\n{_named(faults)}", faults)


def _named(faults: Sequence[Fault]) -> str:
    named = "\n".join(f"  {fault}" for fault in faults[:_MOST_NAMED])
    return named + (f"\n  ... and {len(faults) - _MOST_NAMED} more" if len(faults) > _MOST_NAMED else "")
