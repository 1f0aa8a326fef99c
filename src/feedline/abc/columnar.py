"""The contract of datasets that are nothing but arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Columnar(ABC):
    """A map-style dataset whose samples are rows of arrays.

    A loader with the default collate function makes a batch of it in one vectorised step per array, without asking
    for single samples. Only subclasses are treated so: a method of the same name on another dataset means nothing.
    """

    @abstractmethod
    def columns(self) -> Any:
        """Return the arrays: one, a tuple or a dict of them, all of the length of the dataset.

        Sample i is row i of each, in the same form. None if that does not hold, because samples are transformed.
        Called once per worker.
        """
