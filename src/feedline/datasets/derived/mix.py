"""Datasets mixed in given proportions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from feedline.abc.source import ShardedSource
from feedline.datasets.derived.mixture import Mixture
from feedline.datasets.derived.mixture_stream import MixtureStream, ShardedMixtureStream
from feedline.datasets.framework.kind import kind_of
from feedline.datasets.framework.source import checked_count, checked_flag
from feedline.errors import BadOption
from feedline.randomness.keys import checked_seed
from feedline.types import DatasetKind


def mix(
    datasets: Iterable[object],
    weights: Sequence[float] | None = None,
    *,
    size: int | None = None,
    seed: int = 0,
    repeat: bool = False,
) -> Mixture | MixtureStream:
    """Return a dataset that takes its samples from several others, in given proportions.

    Proportions hold everywhere, not only on average: among the first m samples, each dataset has m times its share,
    rounded down or up. Each dataset is read in random order, and again in another order once all of its samples have
    been used.

    If all datasets are map-style, so is the mixture: sample i depends only on i, seed, epoch and weights, so the
    mixture works with any sampler and any number of workers. If `set_epoch` is called, an epoch continues where the
    previous one ended, so that over time all of a dataset with a small share is used.

    If any dataset is iterable, so is the mixture. It ends when the next sample is due from a dataset that has ended.
    Iterable datasets are read in their own order. The mixture has `state_dict` and `load_state_dict`. If all of the
    iterable datasets split themselves over workers and ranks, as streams of tar shards do, the mixture does too: each
    worker mixes its own parts.

    Both have `set_epoch(epoch)`, which loaders call automatically, and `set_weights(weights)`. Worker processes have
    copies, so use `loader.broadcast` to call it there.

    Args:
        datasets: map-style or iterable datasets.
        weights: the proportions, with any sum; equal if None. Those without a small common denominator are rounded to
            multiples of 1 / 16,384 of their sum.
        size: the number of samples in the mixture. By default the total of its datasets; a mixture with an iterable
            dataset has no limit by default.
        seed: determines the order.
        repeat: only for mixtures with an iterable dataset: restart datasets that have ended instead of ending.

    Raises:
        BadOption: a dataset or weight is invalid, or a dataset with a weight is empty.

    Example:
        >>> from feedline.datasets import mix
        >>> speech, music = [f"speech {i}" for i in range(100)], [f"music {i}" for i in range(10)]
        >>> mixture = mix([speech, music], [0.75, 0.25], size=40)
        >>> mixture
        Mixture(40 samples of 2 datasets, weights=[0.75, 0.25], seed=0)
        >>> sum(sample.startswith("music") for sample in mixture)
        10
    """
    checked_flag("repeat", repeat)
    _check_datasets(datasets)
    parts = list(datasets)
    if not parts:
        raise BadOption("datasets is empty: there is nothing to mix.")
    limit = None if size is None else checked_count("size", size, 1)
    kinds = [kind_of(dataset, f"datasets[{number}]") for number, dataset in enumerate(parts)]
    if DatasetKind.ITERABLE in kinds:
        pairs = zip(parts, kinds, strict=True)
        is_sharded = all(isinstance(part, ShardedSource) for part, kind in pairs if kind is DatasetKind.ITERABLE)
        made = ShardedMixtureStream if is_sharded else MixtureStream
        return made(parts, kinds, weights, limit, seed=checked_seed(seed), repeat=repeat)
    if repeat:
        raise BadOption(
            "repeat=True is for iterable datasets, but all of these are map-style: they repeat until the mixture has "
            "`size` samples. Pass size= instead."
        )
    return Mixture(parts, weights, limit, checked_seed(seed))


def _check_datasets(datasets: object) -> None:
    """Refuse a dict, whose keys would be taken for datasets, and a single dataset, whose samples would be."""
    kind = type(datasets)
    if isinstance(datasets, Mapping):
        raise BadOption(
            f"datasets is a {kind.__name__} with the keys {', '.join(map(repr, list(datasets)[:4]))}, but mix takes no "
            "names. Pass a list, as in mix(list(datasets.values())), and weights in the same order."
        )
    is_dataset = not isinstance(datasets, Sequence) and not hasattr(kind, "__next__") and kind.__module__ != "builtins"
    if is_dataset or isinstance(datasets, (str, bytes)) or not hasattr(kind, "__iter__"):
        raise BadOption(
            f"datasets is a {kind.__name__}, not a list of datasets. Pass all datasets in one list, as in mix([speech, "
            "music], [0.75, 0.25])."
        )
