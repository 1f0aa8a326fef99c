"""Cores, and memory that is left out of core dumps; for real crashes see tests/faults/test_dumps.py."""

from __future__ import annotations

import errno
import mmap
import os

import pytest

from feedline.system.process import core_count, leave_out_of_dumps


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not bind processes to cores")
def test_only_cores_that_the_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 6})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert core_count() == 3


class Refusing(mmap.mmap):
    code = errno.EINVAL

    def madvise(self, *_: object) -> None:
        raise OSError(self.code, "refused")


def test_systems_that_cannot_leave_memory_out_of_dumps_are_tolerated(monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = Refusing(-1, mmap.PAGESIZE)
    leave_out_of_dumps(mapping)
    monkeypatch.setattr(Refusing, "code", errno.ENOMEM)
    with pytest.raises(OSError, match="refused"):
        leave_out_of_dumps(mapping)
    monkeypatch.delattr(mmap, "MADV_DONTDUMP")
    leave_out_of_dumps(mapping)
