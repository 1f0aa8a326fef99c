"""The contract of datasets that are some samples of another."""

from __future__ import annotations

from abc import ABC
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Selection(ABC):
    """A map-style dataset whose sample i is sample `indices[i]` of another one.

    A loader that can read the other dataset in one vectorised step reads this one so, too. Only subclasses are treated
    so, as long as their samples are what is said here.
    """

    # Any: a dataset is any object that fits.
    dataset: Any
    """The other dataset."""
    indices: NDArray[np.int64]
    """Which of its samples, in order."""
