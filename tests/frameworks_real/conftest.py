"""Tests with the real packages: one that is missing skips its tests, or fails them where it must be there."""

from __future__ import annotations

import importlib.util
import os

import pytest


def need(package: str) -> None:
    """Skip the tests of a file whose framework is not installed; with FEEDLINE_FRAMEWORKS=required let them fail."""
    if importlib.util.find_spec(package) is not None:
        return
    reason = f"{package} is not installed (the extra `frameworks` brings it)"
    if os.environ.get("FEEDLINE_FRAMEWORKS") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)
