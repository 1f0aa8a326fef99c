"""Whether a dataset can keep its promises on threads when the loader has a seed.

The generators of the process (`random`, `numpy.random`, torch's default) cannot belong to one thread. A dataset that
draws from them would draw different numbers every time, so its workers become processes, where it is reproducible as
it is. What is looked at is a few samples, and what the collate function makes of them; a dataset that draws for rare
samples only may pass unnoticed. A sample that fails has perhaps drawn something before, and says nothing of the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from feedline.errors import DataWarning, warn_user
from feedline.randomness import global_states as randomness
from feedline.workers.fetch.awaiting import is_awaited

_LOOKS = 4
"""Samples that are made. Four from all over show what most datasets do to all of theirs; a guess."""

_MOST_TRIES = 16
"""Samples that are tried until there are as many. If all of them fail, nobody knows what the others do."""


def must_leave_threads(
    dataset: Any, collate: Callable[[Any], Any] | None, *, is_map: bool, batched: bool = True
) -> bool:
    """Make a few samples and see whether they draw from generators of the process; warn if they do.

    Args:
        dataset: the dataset.
        collate: what makes a batch of samples, or of each of them if they are not batched.
        is_map: False for an iterable dataset, which is not looked at: what is read of it may be gone.
        batched: False if samples are delivered one by one.
    """
    if is_map and is_awaited(dataset):  # whose samples share the generators on processes, too
        return False
    used = _generators_used(dataset, collate, batched=batched) if is_map else []
    if not used:
        return False
    warn_user(
        f"{type(dataset).__name__} draws random numbers from {' and '.join(used)}, which thread workers cannot have "
        "for themselves, so with seed= its batches would not be reproducible. Its workers are processes instead. To "
        "keep threads, draw from feedline.rng() in the dataset, or leave out seed=.",
        DataWarning,
    )
    return True


def _generators_used(dataset: Any, collate: Callable[[Any], Any] | None, *, batched: bool) -> list[str]:
    with randomness.globals_kept():
        randomness.seed_globals(0)
        before = randomness.GlobalStates.now()
        samples: list[Any] = []
        for index in _some_indices(dataset):
            with _failures_left_to_workers():
                samples.append(_made(dataset, index, batched=batched))
            if len(samples) == _LOOKS:
                break
        if collate is not None and samples:
            for what in [samples] if batched else samples:
                with _failures_left_to_workers():
                    collate(what)
        return randomness.GlobalStates.now().differing(before)


def _failures_left_to_workers() -> contextlib.suppress:
    """Whatever is wrong with a sample, its worker says so when its turn comes."""
    return contextlib.suppress(Exception)


def _made(dataset: Any, index: Any, *, batched: bool) -> Any:
    """Make a sample as a worker would."""
    several = getattr(dataset, "__getitems__", None) if batched else None
    return several([index])[0] if several else dataset[index]


def _some_indices(dataset: Any) -> Iterator[Any]:
    """Yield indices from all over a dataset, the first few far apart."""
    if isinstance(dataset, Mapping):  # whose indices are its keys
        yield from islice(dataset, _MOST_TRIES)
        return
    count = _MOST_TRIES  # of a dataset that cannot tell how many there are
    with _failures_left_to_workers():
        count = len(dataset)
    spread = [0, count // 3, 2 * count // 3, count - 1, *(place * count // _MOST_TRIES for place in range(_MOST_TRIES))]
    yield from islice(dict.fromkeys(place for place in spread if 0 <= place < count), _MOST_TRIES)
