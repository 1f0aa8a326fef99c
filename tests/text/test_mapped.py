"""Reading ahead happens only while pages come from a disk, and never affects what is read."""

from __future__ import annotations

import itertools
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.text.mapped import MappedTokens
from feedline.text.token_file import find_tokens
from tests.text.token_files import write

WIDTH = 300


class Recorded:
    """A mapping that records the advice given to the system."""

    def __init__(self, real: mmap.mmap) -> None:
        self.real = real
        self.advice: list[tuple[int, ...]] = []

    def madvise(self, *advice: int) -> None:
        self.real.madvise(*advice)
        self.advice.append(advice)


def mapped_in(tmp_path: Path) -> Any:
    found: Any = MappedTokens(find_tokens(str(write(tmp_path / "a.bin", [list(range(60_000))]))))
    found._map = Recorded(found._map)
    return found


def read(mapped: Any, starts: list[int]) -> list[Any]:
    """Read windows, check them, and return the advice given to the system."""
    mapped._map.advice.clear()
    found = mapped.windows(np.array(starts), WIDTH)
    assert (found == np.array(starts)[:, None] + np.arange(WIDTH)).all()
    return [option for option, *_ in mapped._map.advice]


def test_pages_on_a_disk_are_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = mapped_in(tmp_path)
    counter = itertools.count()
    monkeypatch.setattr("feedline.text.mapped._disk_reads", lambda: next(counter))
    assert read(mapped, [0, 30_000, 59_700]) == []
    assert read(mapped, [59_700, 30_000, 0]) == [mmap.MADV_RANDOM, *[mmap.MADV_WILLNEED] * 3]
    for _, first, size in mapped._map.advice[1:]:
        assert first % mmap.PAGESIZE == 0
        assert first + size <= mapped.file.tokens_end
    assert read(mapped, [59_700, 0]) == [mmap.MADV_WILLNEED] * 2
    assert read(mapped, [0, 300, 600]) == [mmap.MADV_NORMAL, *[mmap.MADV_WILLNEED] * 3]
    assert read(mapped, [0]) == []
    monkeypatch.setattr("feedline.text.mapped._disk_reads", lambda: 7)
    for _ in range(64):
        assert read(mapped, [0, 300]) == [mmap.MADV_WILLNEED] * 2
    assert read(mapped, [0, 300]) == [], "all pages are in memory now"
