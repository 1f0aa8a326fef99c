"""Several map-style datasets combined in given proportions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.deferred import hands_on_images
from feedline.abc.description import Described, Description, origin_of
from feedline.abc.source import Derived
from feedline.datasets.framework.passes import Epochs
from feedline.errors import BadOption
from feedline.randomness.bijection import index_at, indices_at
from feedline.randomness.keys import epoch_key, mix, mix_array
from feedline.randomness.turns import Turns

_SHIFT = 40
"""A pass is encoded as one number: the dataset number above the pass number. 2**40 passes are never reached."""


class Mixed(Epochs):
    """Base class of both kinds of mixtures."""

    # Any: datasets are any objects that fit.
    datasets: list[Any]
    _sizes: Sequence[int | None]
    """The sizes of map-style datasets; None for streams."""

    def _sources(self) -> list[Description]:
        return [origin_of(dataset, size) for dataset, size in zip(self.datasets, self._sizes, strict=True)]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, also of those datasets that have a `set_epoch` themselves."""
        super().set_epoch(epoch)
        for dataset in self.datasets:
            if callable(set_epoch := getattr(dataset, "set_epoch", None)):
                set_epoch(self.epoch)


class Mixture(Mixed, Derived, Described):
    """A map-style dataset that takes its samples from several others; `mix` makes it.

    The sample at an index depends only on seed, epoch and weights. An epoch continues where the previous one ended:
    samples of a dataset that did not fit into one come in the next.
    """

    # Any: datasets are any objects that fit.
    def __init__(self, datasets: Sequence[Any], weights: Sequence[float] | None, size: int | None, seed: int) -> None:
        self.datasets = list(datasets)
        self._sizes = sizes = [len(dataset) for dataset in datasets]
        self.size = sum(sizes) if size is None else size
        self.seed = seed
        self._orders = Orders(sizes, mix(epoch_key(seed, 0), 1))
        self.set_weights(weights)

    def set_weights(self, weights: Sequence[float] | None) -> None:
        """Mix in other proportions from now on; None for equal ones.

        The sample at an index is then the one that these weights would have given from the start. Worker processes that
        are already running keep their weights. Raises BadOption: these are not valid weights for the datasets.
        """
        self.weights = check_weights(weights, self._sizes)
        self._turns = Turns(self.weights, mix(epoch_key(self.seed, 0), 0))

    def locate(self, index: int) -> tuple[int, int]:
        """Return the origin of the sample at an index: the number of the dataset, and the index in it.

        Raises IndexError: there is no such sample.
        """
        place = operator.index(index)
        if not -self.size <= place < self.size:
            raise IndexError(f"index {place} is out of range for a mixture of {self.size} samples.")
        number, turn = self._turns.one(place % self.size + self.epoch * self.size)
        return number, self._orders.one(number, turn)

    def describe(self) -> Description:
        options = {"weights": self.weights, "size": self.size, "seed": self.seed}
        return [{"operator": "mix", **options, "sources": self._sources()}]

    @property
    def hands_on_images(self) -> bool:
        """As `Source.hands_on_images`."""
        return all(map(hands_on_images, self.datasets))

    def origin(self, index: Any) -> tuple[Any, object]:
        number, own_index = self.locate(index)
        return self.datasets[number], own_index

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        dataset, own_index = self.origin(index)
        return dataset[own_index]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(self.size))

    @property
    def __getitems__(self) -> Callable[[Iterable[int]], list[Any]] | None:
        """Returns the samples at several indices. None unless every dataset has this method: loaders check for it."""
        if all(callable(getattr(dataset, "__getitems__", None)) for dataset in self.datasets):
            return self._several
        return None

    def _several(self, indices: Iterable[int]) -> list[object]:
        located: dict[int, tuple[list[int], list[int]]] = {}
        for place, (number, own_index) in enumerate(self._several_places(indices)):
            places, own_indices = located.setdefault(number, ([], []))
            places.append(place)
            own_indices.append(own_index)
        samples: list[object] = [None] * sum(len(places) for places, _ in located.values())
        for number, (places, own_indices) in located.items():
            for place, sample in zip(places, self.datasets[number].__getitems__(own_indices), strict=True):
                samples[place] = sample
        return samples

    def _several_places(self, indices: Iterable[int]) -> list[tuple[int, int]]:
        """Return what `locate` returns for each of several indices."""
        places = np.array([operator.index(index) for index in indices], np.int64)
        wrong = places[(places < -self.size) | (places >= self.size)]
        if len(wrong):
            self.locate(int(wrong[0]))  # raises the error
        numbers, turns = self._turns.at(places % self.size + self.epoch * self.size)
        return list(zip(numbers.tolist(), self._orders.at(numbers, turns).tolist(), strict=True))

    def __repr__(self) -> str:
        return f"Mixture({self.size} samples of {len(self.datasets)} datasets, {form(self.weights)}, seed={self.seed})"


class Orders:
    """Endless orders of the samples of several datasets: no sample repeats before its whole dataset has been used."""

    def __init__(self, sizes: Sequence[int], key: int) -> None:
        self._sizes = list(sizes)
        self._size_array = np.array(self._sizes, np.int64)
        self._key = key

    def at(self, numbers: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index in each given dataset at the given turn."""
        sizes = self._size_array[numbers]
        passes, places = np.divmod(turns, sizes)
        return indices_at(places, sizes, mix_array(self._key, (numbers << _SHIFT) + passes))

    def one(self, number: int, turn: int) -> int:
        """Return what `at` returns for one dataset and turn."""
        size = self._sizes[number]
        number_of_pass, place = divmod(turn, size)
        key = mix(self._key, (number << _SHIFT) + number_of_pass)
        return index_at(place, size, key)


# Any: any value from the user.
def check_weights(weights: Any, sizes: Sequence[int | None]) -> list[float]:
    """Return weights as floats, equal if None; `sizes` are those of the datasets, None for streams."""
    if weights is None:
        weights = [1.0] * len(sizes)
    # Check the length first, so that a dataset passed as weights is refused before its samples are read.
    if hasattr(type(weights), "__len__") and len(weights) != len(sizes):
        raise _wrong_number(len(weights), len(sizes))
    if not hasattr(type(weights), "__len__") and not hasattr(type(weights), "__next__"):
        raise BadOption(
            f"weights is a {type(weights).__name__}, not a list of numbers. Pass all datasets in one list, as in "
            "mix([speech, music], [0.75, 0.25])."
        )
    try:
        numbers = [float(weight) for weight in weights]
    except (TypeError, ValueError) as exc:
        raise BadOption(f"weights={weights!r} is not a list of numbers, one for each dataset.") from exc
    if len(numbers) != len(sizes):
        raise _wrong_number(len(numbers), len(sizes))
    wrong = [number for number, weight in enumerate(numbers) if not (math.isfinite(weight) and weight >= 0)]
    if wrong:
        raise BadOption(f"weights[{wrong[0]}]={numbers[wrong[0]]} is not a weight: it must be 0 or more, and finite.")
    if not any(numbers):
        raise BadOption(f"weights={numbers} are all 0, so no dataset would ever be used. Make at least one positive.")
    for number, (weight, size) in enumerate(zip(numbers, sizes, strict=True)):
        if weight and size == 0:
            raise BadOption(
                f"datasets[{number}] is empty but has the weight {weight}. Leave it out, or give it the weight 0."
            )
    return numbers


def _wrong_number(weights: int, datasets: int) -> BadOption:
    return BadOption(
        f"There are {weights} weights for {datasets} datasets. Pass one for each. If weights is itself a dataset, "
        "put it into the list of datasets."
    )


def form(weights: Sequence[float]) -> str:
    """Return weights for `__repr__`."""
    return f"weights=[{', '.join(f'{weight:g}' for weight in weights)}]"
