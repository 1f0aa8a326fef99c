from __future__ import annotations

import os

import pytest

from feedline.tools.measure.machine import collect_details
from feedline.tools.measure.measured import headroom_now


def test_collecting_details_does_not_fix_the_start_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_start_method", None)
    assert collect_details().start_method in ("fork", "forkserver", "spawn")


def test_a_broken_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("libtorch.so: not found")

    monkeypatch.setattr("feedline.tools.measure.machine.require", broken)
    assert collect_details().torch_trouble == "OSError: libtorch.so: not found"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity on this system")
def test_only_cores_that_this_process_may_use_count() -> None:
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_cores)})
    try:
        assert headroom_now().cores == collect_details().cores == 1
    finally:
        os.sched_setaffinity(0, all_cores)
