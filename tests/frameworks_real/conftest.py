"""Tests with the real packages: a missing package skips its tests, or fails them where it is required."""

from __future__ import annotations

import importlib.util
import os

import pytest


def need(package: str) -> None:
    """Skip the tests of a file whose framework is not installed; with FEEDLINE_FRAMEWORKS=required, fail them."""
    if importlib.util.find_spec(package) is not None:
        return
    reason = f"{package} is not installed (the extra `frameworks` brings it)"
    if os.environ.get("FEEDLINE_FRAMEWORKS") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)
