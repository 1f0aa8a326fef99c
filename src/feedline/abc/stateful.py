"""The contract of objects that save and restore their state, as torchdata defines it."""

from __future__ import annotations

import sys
from typing import Any, Protocol


class Stateful(Protocol):
    """A dataset, iterator, sampler or batch sampler whose state a loader saves and restores with its own."""

    # Any: what a state consists of is the object's own business; loaders copy it, and workers send it.
    def state_dict(self) -> Any:
        """Return where the object is."""

    def load_state_dict(self, state: Any) -> None:
        """Go on from where `state` was taken."""


# Any: it may be anything.
def is_stateful(value: Any) -> bool:
    """True if an object can save and restore where it is. The weights of a torch module are not meant.

    Example:
        >>> is_stateful([1, 2])
        False
    """
    if not hasattr(value, "state_dict") or not hasattr(value, "load_state_dict"):
        return False
    network = sys.modules.get("torch.nn")  # whose modules have such methods, about their weights
    return network is None or not isinstance(value, network.Module)
