"""Whether what a worker makes depends on which worker it is.

Worker processes have random generators of their own. As long as every batch is made by the worker whose turn it is, in
order, their numbers are the same in every run with the same seeds, and torch's. Work that moves to another worker
changes the numbers of both from then on. So workers look after each task, of short ones that come together after
the last, whether there is anything that such a move could change, and say so with their answers; the training process
moves nothing once one of them has said it.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from feedline.abc.stateful import is_stateful
from feedline.engines.handles import holds
from feedline.randomness.global_states import GlobalStates
from feedline.types import WorkerSpec


class Bonds:
    """What binds a worker's tasks to it. Made when the worker is ready for its first task.

    Args:
        dataset: the worker's own copy.
        spec: what all workers share.
    """

    # Any: a dataset is whatever its user makes of it.
    def __init__(self, dataset: Any, spec: WorkerSpec) -> None:
        self._dataset = dataset
        self._spec = spec
        self._states = GlobalStates.now()
        self._is_first = True

    def are_there(self) -> bool:
        """True if anything was found so far. Call it after tasks: a generator may come to be with the first one."""
        if self._is_first:
            self._is_first = False
            if is_stateful(self._dataset) or holds_generator(self._dataset) or holds_generator(self._spec.collate):
                return True
        # A dataset that has asked which worker it is in may have seeded or chosen something by that.
        return self._states.have_moved() or self._spec.framework.has_asked()


# Any: whatever the user has made.
def holds_generator(root: Any) -> bool:
    """True if an object holds a random generator, directly or indirectly. What functions refer to is not looked at."""
    torch = sys.modules.get("torch")
    kinds: tuple[type, ...] = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    if torch is not None:
        kinds += (torch.Generator,)
    try:
        return holds(root, kinds)
    except Exception:  # of an object that is like no other: it may hold anything, and the batch is there
        return True
