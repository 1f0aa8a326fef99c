"""Memory that is left out of core dumps; what that means for a crash is in tests/faults/test_dumps.py."""

from __future__ import annotations

import errno
import mmap

import pytest

from feedline.dumps import leave_out_of_dumps


class Refusing(mmap.mmap):
    code = errno.EINVAL

    def madvise(self, *_: object) -> None:
        raise OSError(self.code, "refused")


def test_a_system_that_cannot_leave_memory_out_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = Refusing(-1, mmap.PAGESIZE)
    leave_out_of_dumps(mapping)
    monkeypatch.setattr(Refusing, "code", errno.ENOMEM)
    with pytest.raises(OSError, match="refused"):
        leave_out_of_dumps(mapping)
    monkeypatch.delattr(mmap, "MADV_DONTDUMP")
    leave_out_of_dumps(mapping)
