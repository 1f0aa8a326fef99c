"""Tells a dataset which samples its worker will read next, so that it can fetch them in advance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.source import AheadSource
from feedline.errors import PerformanceWarning, warn_user
from feedline.system.failures import words
from feedline.types import Call, IndexBlock, MapStyle, Task


# Any: a dataset of any kind, inside subsets of torch.
def announcer_of(dataset: Any) -> Announcer | None:
    """Return the announcer for a dataset; None if the dataset does not fetch ahead."""
    chosen: list[MapStyle[int]] = []
    while type(dataset).__name__ == "Subset" and type(dataset).__module__.startswith("torch."):
        chosen.append(dataset.indices)
        dataset = dataset.dataset
    if not isinstance(dataset, AheadSource) or not dataset.fetches_ahead:
        return None
    return Announcer(dataset, chosen)


class Announcer:
    """Announces the samples of tasks to one dataset.

    Args:
        dataset: the dataset to notify.
        chosen: the indices of subsets around it, outermost first.
    """

    def __init__(self, dataset: AheadSource, chosen: list[MapStyle[int]]) -> None:
        self._dataset: AheadSource | None = dataset
        self._chosen = chosen

    def announce(self, tasks: Iterable[Task]) -> None:
        """Announce the samples of tasks. If the dataset fails, warn once, and leave it alone from then on."""
        try:
            for task in tasks:
                indices = self._indices(task.indices)
                if indices is not None and self._dataset is not None:
                    self._dataset.fetch_ahead(indices)
        except Exception as exc:
            name, self._dataset = type(self._dataset).__name__, None
            warn_user(
                f"{name}.fetch_ahead raised {words(exc)}. Nothing is fetched ahead any more: samples are read when "
                "their turn comes.",
                PerformanceWarning,
            )

    def _indices(self, indices: object) -> NDArray[np.int64] | None:
        """Return indices of the dataset itself; None if they are not numbers."""
        if type(indices) is Call:
            return None
        array = np.atleast_1d(np.asarray(indices.array if type(indices) is IndexBlock else indices))
        if array.dtype.kind not in "iu" or array.ndim != 1:
            return None
        for chosen in self._chosen:
            array = np.asarray([chosen[index] for index in array.tolist()])
        return array.astype(np.int64, copy=False)
