"""Find the sample of a batch that kills its worker, by making halves of the batch separately."""

from __future__ import annotations

from dataclasses import dataclass

_ENOUGH = 2
"""Workers in a row that must die over a single place before it is blamed. One may have died of another cause."""


@dataclass(slots=True)
class Bisection:
    """Narrow the places of a batch down to the one that kills.

    Example:
        >>> search = Bisection(0, 8)
        >>> search.probe
        (0, 4)
        >>> search.survived()
        >>> search.probe
        (4, 6)
        >>> search.died()  # of 4 and 5
        >>> search.died()  # of 4
        >>> search.died()  # and again: that is enough
        >>> search.found
        4
    """

    low: int
    high: int
    """The place is one of `low` to `high - 1`."""
    deaths_alone: int = 0
    """Workers that died over a single place."""
    failed: bool = False
    """True if no place kills by itself."""

    def __post_init__(self) -> None:
        self.failed = self.failed or self.high <= self.low

    @property
    def probe(self) -> tuple[int, int]:
        """The range of places to make separately next."""
        return self.low, self.low + 1 if self._is_single else (self.low + self.high) // 2

    @property
    def _is_single(self) -> bool:
        return self.high - self.low == 1

    @property
    def found(self) -> int | None:
        """The place that kills, once known."""
        return self.low if self.deaths_alone >= _ENOUGH else None

    def died(self) -> None:
        """Record that the probe killed its worker."""
        self.high = self.probe[1]
        self.deaths_alone += self._is_single

    def survived(self) -> None:
        """Record that the probe killed no worker."""
        if self._is_single:
            self.failed = True
        else:
            self.low = self.probe[1]
