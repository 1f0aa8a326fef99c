"""Cores, and memory that is left out of core dumps."""

from __future__ import annotations

import os

import pytest

from feedline.system.process import core_count


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not bind processes to cores")
def test_only_cores_that_the_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 6})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert core_count() == 3
