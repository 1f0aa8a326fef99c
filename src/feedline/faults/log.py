"""The log of faults, and the samples that are not retried."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, overload

from feedline.abc.faults import ACTIONS, Fault, index_key
from feedline.abc.stateful import check_format
from feedline.errors import BadState
from feedline.system.failures import words
from feedline.types import State

MOST_ENTRIES = 10_000
"""Faults that are kept in detail. A guess: more than anyone reads, and a few megabytes in a saved state at most."""

_SHOWN = 3
"""Faults that the repr shows."""


class FaultLog(Sequence[Fault]):
    """The samples that failed and what happened to them, the oldest first; `loader.faults` is one.

    At most 10,000 faults are kept in detail; `dropped` counts the older ones. Samples that were skipped or replaced
    stay in quarantine: they are not tried again, even after a state was saved and loaded, until `release` or `clear`.
    If the dataset has a `set_epoch`, they are tried again in the next epoch, where an index may mean another sample.

    One thread appends to it; others may read.

    Example:
        >>> from feedline.faults import Failure
        >>> log = FaultLog()
        >>> log.append(Fault.of(Failure(7, OSError("disk"), "fetch", 1, worker=0), "skip", time=1.7e9))
        >>> log
        FaultLog of 1 fault: 1 skip; 1 sample in quarantine
          sample 7: OSError: disk (fetch, worker 0, attempt 1): skip
        >>> 7 in log.quarantined
        True
        >>> log[0].message
        'disk'
    """

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self._entries: deque[Fault] = deque(maxlen=most_entries)
        self._counts = dict.fromkeys(ACTIONS, 0)
        self._quarantined: dict[Hashable, Fault] = {}
        """Faults by the keys of their indices."""

    def append(self, fault: Fault, *, quarantine: bool = True) -> None:
        """Add a fault. For the loader only.

        Args:
            fault: the fault.
            quarantine: False if the sample could not be recognised again, because it is from a stream.
        """
        self._counts[fault.action] += 1
        self._entries.append(fault)
        # A batch that could not be collated says nothing about its samples.
        if quarantine and fault.lost and fault.stage != "collate":
            self._quarantined[index_key(fault.index)] = fault

    @property
    def quarantined(self) -> list[Any]:  # Any: indices, anything the sampler yields
        """The indices of the samples that are not tried again, because they were skipped or replaced."""
        return [fault.index for fault in list(self._quarantined.values())]

    @property
    def quarantined_count(self) -> int:
        """How many samples are in quarantine."""
        return len(self._quarantined)

    def quarantined_as(self, index: object) -> Fault | None:
        """Return the fault that put a sample in quarantine; None if it is not there."""
        return self._quarantined.get(index_key(index)) if self._quarantined else None

    def has_any_of(self, indices: list[object]) -> bool:
        """True if any of these samples may be in quarantine. Fast for integers; True for any other kind of index."""
        return set(map(type, indices)) != {int} or not self._quarantined.keys().isdisjoint(indices)

    @property
    def total(self) -> int:
        """Number of faults, including those no longer kept in detail."""
        return sum(self._counts.values())

    @property
    def dropped(self) -> int:
        """Number of faults no longer kept in detail."""
        return self.total - len(self._entries)

    def counts(self) -> dict[str, int]:
        """Return the number of faults by action, including those no longer kept in detail.

        Example:
            >>> FaultLog().counts()
            {'raise': 0, 'skip': 0, 'retry': 0, 'replace': 0}
        """
        return dict(self._counts)

    def lost(self, total: int | None = None) -> tuple[int, tuple[str, ...]]:
        """Return how many samples were skipped or replaced, and the last of them. For the loader only.

        Args:
            total: return what was lost after this many faults; None for the current log.
        """
        end = len(self._entries) if total is None else max(0, total - self.dropped)
        entries = list(self._entries)
        later = sum(fault.lost for fault in entries[end:])
        count = self._counts["skip"] + self._counts["replace"] - later
        return count, tuple(str(fault.index) for fault in entries[:end] if fault.lost)[-_SHOWN:]

    def clear(self) -> None:
        """Forget all faults, so that samples in quarantine are tried again."""
        self._entries.clear()
        self._counts.update(dict.fromkeys(ACTIONS, 0))
        self._quarantined.clear()

    def release(self, index: object) -> bool:
        """Take one sample out of quarantine, so that it is tried again; False if it is not there."""
        return self._quarantined.pop(index_key(index), self) is not self

    def release_other_epochs(self, epoch: int) -> None:
        """Take all samples out of quarantine that failed in another epoch. For the loader only."""
        for key in [key for key, fault in self._quarantined.items() if fault.epoch != epoch]:
            del self._quarantined[key]

    def state(self, total: int | None = None) -> State:
        """Return the log in plain values, which JSON, pickle and `torch.save` keep; {} if it is empty.

        Args:
            total: return the log as it was after this many faults; None for the current log.
        """
        state: State = {}
        dropped, entries, held = self.dropped, list(self), list(self._quarantined.values())
        later = [] if total is None else entries[max(0, total - dropped) :]
        entries = entries[: len(entries) - len(later)]
        if entries:
            state["entries"] = [fault.as_dict() for fault in entries]
        known = {id(fault) for fault in later}
        held = [fault for fault in held if id(fault) not in known]
        if held:
            kept = ("index", "action", "replacement", "epoch")  # enough to treat it as before
            state["quarantined"] = [{k: v for k, v in fault.as_dict().items() if k in kept} for fault in held]
        if dropped:
            state["dropped"] = dropped
            of_later = [fault.action for fault in later]
            state["counts"] = {action: count - of_later.count(action) for action, count in self._counts.items()}
        return state

    # Any: what `state` returned, or damage.
    def restore(self, state: Any) -> None:
        """Replace the contents of the log by a saved state.

        Raises:
            BadState: it is something else, or damaged; the log stays as it was.
        """
        try:
            check_format(state, "the fault log")
            entries = [Fault.from_dict(entry) for entry in state.get("entries", [])]
            # What is unknown about a sample in quarantine, if its entry was dropped.
            unknown = {"error": "", "message": "", "stage": "fetch", "worker": None, "attempt": 1, "time": 0.0}
            held = [Fault.from_dict({**unknown, **entry}) for entry in state.get("quarantined", [])]
            counts = Counter(fault.action for fault in entries)
            saved = {action: int(state.get("counts", counts)[action]) for action in ACTIONS}
        except BadState:
            raise
        except (TypeError, AttributeError, KeyError, ValueError) as exc:
            raise BadState(f"The state is damaged: its faults cannot be read: {words(exc)}.") from exc
        self._entries = deque(entries, self._entries.maxlen)
        self._counts = saved
        self._quarantined = {index_key(fault.index): fault for fault in held}

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, place: int) -> Fault: ...

    @overload
    def __getitem__(self, place: slice) -> list[Fault]: ...

    def __getitem__(self, place: int | slice) -> Fault | list[Fault]:
        return list(self._entries)[place] if isinstance(place, slice) else self._entries[place]

    def __iter__(self) -> Iterator[Fault]:
        return iter(list(self._entries))  # a copy, which later appends do not affect

    def __repr__(self) -> str:
        total = len(self) + self.dropped
        counts = ", ".join(f"{count} {action}" for action, count in self._counts.items() if count)
        kept = f"; the last {len(self)} in detail" if self.dropped else ""
        from feedline.system.shown import counted

        held = f"; {counted(len(self._quarantined), 'sample')} in quarantine" if self._quarantined else ""
        head = f"FaultLog of {counted(total, 'fault')}{': ' if counts else ''}{counts}{kept}{held}"
        more = ["  ..."] if total > _SHOWN else []
        return "\n".join([head, *more, *(f"  {' '.join(str(fault).split())}" for fault in self[-_SHOWN:])])
