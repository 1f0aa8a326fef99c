"""Iterable sources of which every worker of every rank reads a part."""

from __future__ import annotations

from typing import Any

from feedline.abc.source import SplitSource
from feedline.datasets.torch_data import tell_torch, torch_worker
from feedline.ranks import rank_if_known


class PartedSource(SplitSource):
    """Knows which worker of which rank it is in, in torch's own loader too.

    To torch it is an `IterableDataset`, if the program had imported torch by the time it was made.
    """

    def __init__(self) -> None:
        self._worker: tuple[int, int] | None = None
        self._ranks: tuple[int, int] | None = None
        """Rank and number of ranks as they were where this was pickled: a worker may not know."""
        tell_torch(PartedSource)

    def set_worker(self, number: int, count: int) -> None:
        self._worker = number, count

    def _place(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return which of how many workers this is, and which of how many ranks."""
        return self._worker or torch_worker(), rank_if_known() or self._ranks or (0, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ranks": rank_if_known() or self._ranks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        tell_torch(PartedSource)
