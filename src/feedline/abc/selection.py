"""The contracts of datasets whose samples come from other datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Derived(ABC):
    """A map-style dataset whose samples come from others, so that messages can name a sample by its own index."""

    # Any: a dataset is any object that fits.
    @abstractmethod
    def origin(self, index: Any) -> tuple[Any, Any]:
        """Return where a sample comes from: the attribute `dataset`, or one of `datasets`, and the index in it.

        Called when a sample has failed; may raise whatever it likes if there is no such sample.
        """


class Selection(Derived):
    """A map-style dataset whose sample i is sample `indices[i]` of another one.

    A loader that can read the other dataset in one vectorised step reads this one so, too. Only subclasses are treated
    so, as long as their samples are what is said here.
    """

    # Any: a dataset is any object that fits.
    dataset: Any
    """The other dataset."""
    indices: NDArray[np.int64]
    """Which of its samples, in order."""

    def origin(self, index: Any) -> tuple[Any, Any]:
        return self.dataset, int(self.indices[index])
