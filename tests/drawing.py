"""The random numbers of a sample, for tests that call transforms themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from feedline.randomness.scope import Scope, enter
from feedline.types import Draw

T = TypeVar("T")


def with_key(key: int, act: Callable[[], T]) -> T:
    """Call a function with the random numbers of this key in `feedline.rng()`."""
    scope = Scope()
    scope.begin(Draw(key))
    before = enter(scope)
    try:
        return act()
    finally:
        enter(before)
