from __future__ import annotations

import os

import pytest

from feedline.tools.measure.measured import headroom_now


def test_the_headroom_of_this_machine() -> None:
    headroom = headroom_now()
    assert headroom.cores >= 1
    assert headroom.memory_bytes is None or headroom.memory_bytes > 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity on this system")
def test_only_cores_that_this_process_may_use_count() -> None:
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_cores)})
    try:
        assert headroom_now().cores == 1
    finally:
        os.sched_setaffinity(0, all_cores)
