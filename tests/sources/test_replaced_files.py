"""Files replaced by others of the same size and modification time are read anew, where no contract says so already."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from feedline.audio import durations
from feedline.datasets import JSONLines, TextLines

Write = Callable[[Path, int], None]
"""Writes one of two files of the same size."""
Read = Callable[[Path, Path], list[Any]]
"""Reads a file, with a folder for what is derived."""


def lines(path: Path, number: int) -> None:
    path.write_text("aaaa\nbb\n" if number else "aa\nbb\nb\n")


def packed_lines(path: Path, number: int) -> None:
    path.write_bytes(gzip.compress(b"%d\n" % number * 100, mtime=0))


def sound(path: Path, number: int) -> None:
    soundfile.write(path, np.zeros((800, 2) if number else 1600), 8000, format="WAV")


CASES: dict[str, tuple[str, Write, Read]] = {
    "index of lines": ("a.txt", lines, lambda path, folder: list(TextLines(path, cache=folder))),
    "copy of lines": (
        "a.jsonl.gz",
        packed_lines,
        lambda path, folder: list(JSONLines(path, cache=folder)),
    ),
    "durations": ("a.wav", sound, lambda path, folder: durations([path], cache=folder).tolist()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_replaced_file_is_read_anew(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.datasets.formats.lines.index.MOST_UNIT", 0)  # unpack small files, too
    name, write, read = CASES[case]
    path, other, folder = tmp_path / name, tmp_path / "other", tmp_path / "kept"
    write(path, 0)
    os.utime(path, ns=(0, 10**18))
    old = read(path, folder)
    assert read(path, folder) == old
    write(other, 1)
    assert other.stat().st_size == path.stat().st_size
    shutil.copystat(path, other)
    os.replace(other, path)
    assert path.stat().st_mtime_ns == 10**18
    new = read(path, folder)
    assert new != old
    fresh = tmp_path / "fresh"
    assert new == read(path, fresh)
