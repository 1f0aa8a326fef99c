from __future__ import annotations

import os
import sys
import time

import pytest

from feedline.tools.measure import load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")


def test_own_cpu_time_does_not_count_as_load_of_others() -> None:
    # The machine was busy for 5 s, 4 of them ours, in 2 s of wall-clock time.
    before = load.Reading({1: 10.0}, 100.0, 0.0)
    assert before.other_cores(load.Reading({1: 14.0}, 105.0, 2.0)) == 0.5
    assert before.other_cores(load.Reading({1: 14.0, 2: 2.0}, 105.0, 2.0)) == 0.0
    assert before.other_cores(load.Reading({1: 14.0}, None, 2.0)) is None
    assert before.other_cores(load.Reading({1: 10.0}, 100.02, 0.1)) is None, "mostly rounding"


def test_cpu_time_and_memory_of_this_process_are_read() -> None:
    (own, *_) = load.process_tree()
    assert own == os.getpid()
    before = load.cpu_seconds([own])
    while time.process_time() < before[own] + 0.03:
        pass
    assert load.cpu_used(before, load.cpu_seconds([own])) > 0
    assert (load.pss_bytes() or 0) > 1 << 20
