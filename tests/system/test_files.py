"""Files that feedline writes, and their folders, which every command makes before the work."""

from __future__ import annotations

import os
from pathlib import Path

from feedline.system.files import drop_abandoned


def test_only_files_that_killed_writers_left_are_dropped(tmp_path: Path) -> None:
    left, recent, other = ".a.lines.0123456789abcdef.part", ".a.lines.0123456789abcdee.part", ".b.0123456789abcdef.part"
    mine = [".a.part", ".a", "a", ".a.0123.part", ".a.lines.0123456789abcdef.part.txt"]
    for name in (left, recent, other, *mine):
        (tmp_path / name).touch()
        if name != recent:
            os.utime(tmp_path / name, (1, 1))
    drop_abandoned(tmp_path, "a")
    assert sorted(os.listdir(tmp_path)) == sorted([recent, other, *mine])
