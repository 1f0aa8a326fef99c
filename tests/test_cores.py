from __future__ import annotations

import os

import pytest
import torch  # noqa: F401  it keeps files open from its import on, which a test would seem to leave behind

from feedline.bench import machine
from feedline.cores import core_count


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not bind processes to cores")
def test_only_cores_that_the_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 6})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert core_count() == 3
    assert machine.look().cores == 3, "everybody counts the same"


def test_systems_that_do_not_bind_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert core_count() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert core_count() == 1
