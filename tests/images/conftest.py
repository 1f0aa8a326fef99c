from __future__ import annotations

from collections.abc import Iterator

import pytest

from feedline.randomness.scope import Scope, enter
from feedline.types import Draw


@pytest.fixture
def fixed_draws() -> Iterator[None]:
    """Make `feedline.rng()` the same in every run, so that statistical tests never fail by chance."""
    scope = Scope()
    scope.begin(Draw(15))
    before = enter(scope)
    yield
    enter(before)
