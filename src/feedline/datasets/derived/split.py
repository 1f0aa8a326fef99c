"""Divide a dataset into parts at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from feedline.abc.description import Described, Description, origin_of
from feedline.abc.source import Selection
from feedline.datasets.framework.kind import kind_of
from feedline.errors import BadOption
from feedline.randomness.keys import checked_seed, epoch_key, mix, mix_array
from feedline.samplers.labels import classes_of
from feedline.types import DatasetKind

Numbers = NDArray[np.int64]

_ROUNDING = 1e-9
"""Tolerance for rounding errors: 0.7 + 0.2 + 0.1 is less than 1, 0.29 * 100 less than 29."""


class Subset(Selection, Described):
    """The samples of a map-style dataset at given indices; `feedline.split` makes it.

    It has the attributes of torch's `Subset`, but `indices` is one array. Pickling it includes its dataset.

    Example:
        >>> import numpy as np
        >>> subset = Subset("abcdef", np.array([1, 3]))
        >>> subset, subset[0], subset[-1]
        (Subset(2 of 6 samples of a str), 'b', 'd')
    """

    def __init__(self, dataset: object, indices: NDArray[np.int64]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def describe(self) -> Description:
        # A checksum stands for what `split` was given.
        options = {"size": len(self), "indices": crc32(np.ascontiguousarray(self.indices).data)}
        return [*origin_of(self.dataset, len(self.dataset)), {"operator": "split", **options}]

    # Any: an integer; like torch's Subset, it also passes a list on to datasets that support it.
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[self.indices[index].tolist()]
        return self.dataset[int(self.indices[index])]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    @property
    def __getitems__(self) -> Callable[[Iterable[int]], list[Any]] | None:
        """Returns the samples at several indices. None unless the dataset has this method: loaders check for it."""
        return self._several if callable(getattr(self.dataset, "__getitems__", None)) else None

    def _several(self, indices: Iterable[int]) -> list[object]:
        found: list[object] = self.dataset.__getitems__(self.indices[np.fromiter(indices, np.int64)].tolist())
        return found

    def __repr__(self) -> str:
        kind = type(self.dataset).__name__
        return f"Subset({len(self.indices)} of {len(self.dataset)} samples of a {kind})"


# Any: a dataset is any object that fits; labels come as lists, arrays and tensors.
def split(
    dataset: Any, parts: Sequence[float], *, stratify: object = None, groups: object = None, seed: int = 0
) -> list[Subset]:
    """Divide a map-style dataset into parts at random, such as one to train on and one to test with.

    The same arguments give the same parts on every machine. No sample is in two parts, and if the fractions sum to 1,
    each sample is in one. Samples keep the order of the dataset within a part.

    Args:
        dataset: anything with `__getitem__` and `__len__`.
        parts: fractions that sum to at most 1, or numbers of samples.
        stratify: the label of each sample; every part then has the same proportions of classes, each within one sample.
            Chance decides which part gets the only sample of a class.
        groups: also a label for each sample; samples with the same label stay together, such as those of one patient or
            one video. The sizes of the parts are then as close as that allows.
        seed: determines which samples are in which part.

    Returns:
        A dataset for each part, with the attributes `dataset` and `indices` of torch's `Subset`.

    Raises:
        BadOption: the parts are too large, one would be empty, or there is not exactly one label for each sample.

    Example:
        >>> import feedline
        >>> train, test = feedline.split(list("abcdefghij"), [0.8, 0.2])
        >>> len(train), len(test), sorted([*train, *test]) == list("abcdefghij")
        (8, 2, True)
    """
    if kind_of(dataset, "dataset") is DatasetKind.ITERABLE:
        raise BadOption(
            f"dataset is a {type(dataset).__name__}, which is iterable: it has no indices to divide. Split its source, "
            "such as a list of files, or make a list of its samples."
        )
    if stratify is not None and groups is not None:
        raise BadOption(
            "stratify= and groups= were both given, but keeping groups together changes the proportions. Drop one."
        )
    count = len(dataset)
    wanted = _numbers(parts)
    fractions, sizes = _fractions(wanted, count)
    key = epoch_key(checked_seed(seed), 0)
    if groups is not None:
        chosen = _whole_groups(_labels(groups, "groups", count), fractions, key)
    else:
        classes = np.zeros(count, np.int64) if stratify is None else _labels(stratify, "stratify", count)
        chosen = _in_proportion(classes, fractions, sizes, key)
    indices = [np.flatnonzero(chosen == number) for number in range(len(wanted))]
    for number, part in enumerate(indices):
        if len(part) == 0:
            raise BadOption(
                f"parts[{number}]={wanted[number]} of {count} samples makes an empty part"
                f"{'' if groups is None else ', with groups kept together'}. Make the part larger, or leave it out."
            )
    return [Subset(dataset, part) for part in indices]


def _labels(labels: object, name: str, count: int) -> Numbers:
    numbers, _ = classes_of(labels, name)
    if len(numbers) != count:
        raise BadOption(f"{name} has {len(numbers)} labels for {count} samples. Pass one for each.")
    return numbers


def _numbers(parts: object) -> list[float]:
    values = list(parts) if isinstance(parts, Iterable) else []
    are_numbers = all(isinstance(value, Real) and not isinstance(value, bool) for value in values)
    if not values or not are_numbers or not all(math.isfinite(value) and value > 0 for value in values):
        raise BadOption(f"parts={parts!r} is not a list of fractions, or of numbers of samples, that are positive.")
    return values


def _fractions(values: list[float], count: int) -> tuple[list[float], list[int]]:
    """Return the fraction and the size of each part, followed by those of the remainder."""
    if all(isinstance(value, (int, np.integer)) for value in values):
        sizes = [int(value) for value in values]
        if sum(sizes) > count:
            raise BadOption(f"parts={sizes} sum to {sum(sizes)}, but there are {count} samples.")
        sizes.append(count - sum(sizes))
        return [size / max(count, 1) for size in sizes], sizes
    total = math.fsum(values)
    if total > 1 + _ROUNDING:
        raise BadOption(
            f"parts={values} sum to {total:g}. Fractions must sum to at most 1; numbers of samples must be integers."
        )
    fractions = [float(value) for value in values]
    fractions.append(1 - total if 1 - total > _ROUNDING else 0.0)
    return fractions, _largest_remainder(fractions, count)


def _largest_remainder(fractions: list[float], count: int) -> list[int]:
    """Round sizes so that they sum to `count`: round down, then round up those that lost most."""
    exact = [fraction * count for fraction in fractions]
    sizes = [math.floor(size + _ROUNDING) for size in exact]
    by_loss = sorted(range(len(sizes)), key=lambda number: sizes[number] - exact[number])
    for number in by_loss[: count - sum(sizes)]:
        sizes[number] += 1
    return sizes


def _in_proportion(classes: Numbers, fractions: list[float], sizes: list[int], key: int) -> Numbers:
    """Return the part of each sample, so that parts have these sizes and each class is divided by these fractions."""
    count = len(classes)
    if count == 0:
        return np.empty(0, np.int64)
    class_sizes = np.bincount(classes)
    # How many samples of each class go into each part: start with the exact number rounded down.
    table = np.floor(np.outer(class_sizes, fractions) + _ROUNDING).astype(np.int64)
    needed = np.array(sizes) - table.sum(axis=0)
    # Each class gives its remaining samples to the parts that still need most. This finds sizes that fit if there are
    # any (Havel and Hakimi), with the classes in any order: use a random one, to favour no part.
    left = class_sizes - table.sum(axis=1)
    with_rest = np.flatnonzero(left)
    for number in with_rest[np.argsort(mix_array(mix(key, 0), with_rest))].tolist():
        takers = np.argsort(-needed, kind="stable")[: left[number]]
        table[number, takers] += 1
        needed[takers] -= 1
    # Samples in random order, class by class; the first of each class go into the first part, and so on.
    order = np.lexsort((mix_array(mix(key, 1), np.arange(count)), classes))
    chosen = np.empty(count, np.int64)
    chosen[order] = np.repeat(np.tile(np.arange(len(sizes)), len(class_sizes)), table.reshape(-1))
    return chosen


def _whole_groups(groups: Numbers, fractions: list[float], key: int) -> Numbers:
    """Return the part of each sample: put groups in random order and cut where the fractions end."""
    if len(groups) == 0:
        return np.empty(0, np.int64)
    sizes = np.bincount(groups)
    order = np.argsort(mix_array(key, np.arange(len(sizes))))
    middles = np.cumsum(sizes[order]) - sizes[order] / 2
    part_of = np.empty(len(sizes), np.int64)
    part_of[order] = np.searchsorted(np.cumsum(fractions[:-1]) * len(groups), middles, side="right")
    return part_of[groups]
