"""How the samples of a batch are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Asking:
    """One question per sample, or one for all of them."""

    ask: Callable[[Any], Any]
    """Returns what the dataset has for an item."""
    items: Callable[[Any], list[Any]]
    """Returns what to ask for, given what the plan says: its indices, or all of them as one item."""
    join: Callable[[list[Any]], Any]
    """Makes the batch of the answers."""
    join_draws: bool = True
    """False if making the batch is known to draw no random numbers."""
