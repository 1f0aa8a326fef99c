"""Whether the samples of a dataset are reproducible on threads when the loader has a seed.

Threads share the process-wide generators (`random`, `numpy.random`, torch's default). A dataset that draws from them
would get different numbers every time, so its workers become processes, where it is reproducible as it is. The check
makes a few samples and collates them. A dataset that draws only for rare samples may pass undetected. Samples that fail
are left out, because they may have drawn numbers before the failure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sized
from itertools import islice
from typing import Any

from feedline.errors import DataWarning, warn_user
from feedline.randomness import global_states as randomness
from feedline.types import CollateFunction, MapStyle
from feedline.workers.fetch.awaiting import is_awaited

_LOOKS = 4
"""Number of samples to make. Four, spread over the dataset, show what most datasets do for all of their samples; a
guess.
"""

_MOST_TRIES = 16
"""Maximum number of samples to try. If all of them fail, the dataset passes."""


def must_leave_threads(dataset: Any, collate: CollateFunction | None, *, is_map: bool, batched: bool = True) -> bool:
    """Make a few samples; if they draw from process-wide generators, warn and return True.

    Args:
        dataset: the dataset.
        collate: makes a batch of samples, or converts single samples if they are not batched.
        is_map: False for an iterable dataset, which is not checked: samples read from it may not come again.
        batched: False if samples are delivered one by one.
    """
    if is_map and is_awaited(dataset):  # on processes, too, its samples share the generators
        return False
    used = _generators_used(dataset, collate, batched=batched) if is_map else []
    if not used:
        return False
    warn_user(
        f"{type(dataset).__name__} draws random numbers from {' and '.join(used)}, which all threads share, so with "
        "seed= its batches would not be reproducible on threads. Its workers are processes instead. To keep threads, "
        "draw from feedline.rng() in the dataset, or leave out seed=.",
        DataWarning,
    )
    return True


def _generators_used(dataset: MapStyle[object], collate: CollateFunction | None, *, batched: bool) -> list[str]:
    with randomness.globals_kept():
        randomness.seed_globals(0)
        before = randomness.GlobalStates.now()
        samples: list[object] = []
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
    """Suppress exceptions: the worker that makes the sample will report them."""
    return contextlib.suppress(Exception)


def _made(dataset: MapStyle[object], index: object, *, batched: bool) -> object:
    """Make a sample as a worker would."""
    several = getattr(dataset, "__getitems__", None) if batched else None
    return several([index])[0] if several else dataset[index]


def _some_indices(dataset: Sized) -> Iterator[object]:
    """Yield indices from the whole dataset, the first few far apart."""
    if isinstance(dataset, Mapping):  # its indices are its keys
        yield from islice(dataset, _MOST_TRIES)
        return
    count = _MOST_TRIES  # for a dataset without a length
    with _failures_left_to_workers():
        count = len(dataset)
    spread = [0, count // 3, 2 * count // 3, count - 1, *(place * count // _MOST_TRIES for place in range(_MOST_TRIES))]
    yield from islice(dict.fromkeys(place for place in spread if 0 <= place < count), _MOST_TRIES)
