"""Runs every test of failing samples with both loaders."""

from __future__ import annotations

import pytest

from tests.faults.loaders import LOADERS


@pytest.fixture(params=LOADERS)
def loader_kind(request: pytest.FixtureRequest) -> str:
    """Both loaders in turn."""
    name: str = request.param
    return name
