"""Indices such that every class comes equally often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.errors import BadOption
from feedline.samplers.weighted import WeightedRandomSampler
from feedline.values.labels import classes_of


class BalancedSampler(WeightedRandomSampler):
    """Draws indices with replacement such that every class is equally likely, however many samples it has.

    Args:
        labels: The class of each sample: integers or strings, as a list, array or tensor.
        num_samples: Indices in an epoch; as many as labels by default.
        seed: Fixes the orders of all epochs.
        generator: torch or NumPy generator to draw the seed of each epoch from instead.

    Example:
        >>> sampler = BalancedSampler(["cat"] * 999 + ["dog"], 1000, seed=1)
        >>> 400 < sum(index == 999 for index in sampler) < 600
        True
    """

    # Any: an array or tensor has no common type with a list.
    def __init__(
        self,
        labels: Sequence[int] | Sequence[str] | Any,
        num_samples: int | None = None,
        *,
        seed: int | None = None,
        generator: Any = None,
    ) -> None:
        self.labels = labels
        numbers, names = classes_of(labels)
        if len(numbers) == 0:
            raise BadOption("labels is empty: there is nothing to draw from.")
        self.class_count = len(names)
        weights = (1.0 / np.bincount(numbers))[numbers]
        super().__init__(weights, len(numbers) if num_samples is None else num_samples, seed=seed, generator=generator)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "classes": self.class_count}

    def __repr__(self) -> str:
        return (
            f"BalancedSampler({len(self.labels)} labels of {self.class_count} classes, {self.num_samples}"
            f"{self._origin()})"
        )
