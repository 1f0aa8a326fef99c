from __future__ import annotations

from collections.abc import Iterator

import pytest

from feedline.randomness.scope import Scope, enter
from feedline.types import Draw


@pytest.fixture
def fixed_draws() -> Iterator[None]:
    """Let `feedline.rng()` be the same at every run: a statistical test that fails once in a while is no test."""
    scope = Scope()
    scope.begin(Draw(15))
    before = enter(scope)
    yield
    enter(before)
