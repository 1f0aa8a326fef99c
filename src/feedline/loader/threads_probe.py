"""Whether a dataset can keep its promises on threads when the loader has a seed.

The generators of the process (`random`, `numpy.random`, torch's default) cannot belong to one thread. A dataset that
draws from them would draw different numbers every time, so its workers become processes, where it is reproducible as
it is. What is looked at is a few samples; a dataset that draws for rare samples only may pass unnoticed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from feedline import randomness
from feedline.errors import SharedGenerators, tell
from feedline.fetch.awaiting import is_awaited


def must_leave_threads(dataset: Any, collate: Callable[[Any], Any] | None, *, is_map: bool) -> bool:
    """Make a few samples and see whether they draw from generators of the process; warn if they do."""
    if is_map and is_awaited(dataset):  # whose samples share the generators on processes, too
        return False
    used = _generators_used(dataset, collate) if is_map else []
    if not used:
        return False
    tell(
        f"{type(dataset).__name__} draws random numbers from {' and '.join(used)}, which thread workers cannot have "
        "for themselves, so with seed= its batches would not be reproducible. Its workers are processes instead. To "
        "keep threads, draw from feedline.rng() in the dataset, or leave out seed=.",
        SharedGenerators,
    )
    return True


def _generators_used(dataset: Any, collate: Callable[[Any], Any] | None) -> list[str]:
    with randomness.globals_kept():
        randomness.seed_globals(0)
        before = randomness.GlobalStates.now()
        with contextlib.suppress(Exception):  # whatever is wrong with a sample, its worker says so when its turn comes
            count = len(dataset)
            samples = [dataset[index] for index in sorted({0, count // 3, 2 * count // 3, count - 1})]
            if collate is not None:
                collate(samples)
        return randomness.GlobalStates.now().differing(before)
