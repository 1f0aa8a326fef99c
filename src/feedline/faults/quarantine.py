"""The samples that are not tried again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from typing import Any

from feedline.indices import index_key
from feedline.verdicts import Fault


class Quarantine(Set[Any]):  # Any: indices, whatever the sampler yields
    """A view of the samples in quarantine: `in`, `len`, iteration and comparison with sets.

    It follows the log that it is of. An index is recognised in any form: as a number of NumPy's or Python's, as a list
    or array, and after a state was saved and loaded.

    Example:
        >>> import numpy as np
        >>> from feedline.faults import Failure, Fault, FaultLog
        >>> log = FaultLog()
        >>> for index in (3, [1, 2]):
        ...     log.append(Fault.of(Failure(index, OSError("disk"), "fetch", 1, worker=0), "skip", time=1.7e9))
        >>> quarantine = log.quarantined
        >>> 3 in quarantine, np.int64(3) in quarantine, np.array([1, 2]) in quarantine, 4 in quarantine
        (True, True, True, False)
    """

    __slots__ = ("_faults",)

    def __init__(self, faults: Mapping[Hashable, Fault]) -> None:
        self._faults = faults
        """By the keys of their indices."""

    def __contains__(self, index: object) -> bool:
        return bool(self._faults) and index_key(index) in self._faults

    def __iter__(self) -> Iterator[Any]:
        return iter([fault.index for fault in self._faults.values()])

    def __len__(self) -> int:
        return len(self._faults)

    def __eq__(self, other: object) -> bool:  # declared, so that type checkers allow a set on the other side
        return super().__eq__(other)

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> frozenset[Any]:  # what `&` and `|` return
        return frozenset(it)

    def __repr__(self) -> str:
        return f"Quarantine({list(self)!r:.400})"
