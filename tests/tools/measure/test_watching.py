"""Files that are kept open for a while, as if the dataset did so."""

from __future__ import annotations

import io
import json
import os
import sqlite3
from pathlib import Path

import h5py
import numpy as np
import pytest

from feedline.tools.measure.watching import kept_open


def test_files_that_are_opened_again_are_reused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("line 1\nline 2\n")
    np.save(tmp_path / "a.npy", np.arange(3))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["rows"] = np.arange(3)
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute("CREATE TABLE rows AS SELECT 7 AS id")
    connection.commit()
    connection.close()
    originals = (open, io.open, np.load, h5py.File, sqlite3.connect)
    with kept_open():
        for _ in range(2):
            with open(tmp_path / "a.txt") as file:
                assert file.readline() == "line 1\n"
            assert (tmp_path / "a.txt").read_bytes().endswith(b"2\n")
            with h5py.File(tmp_path / "a.h5", "r") as file:
                assert file["rows"][2] == 2
            again = sqlite3.connect(tmp_path / "a.db")
            assert list(again.execute("SELECT id FROM rows")) == [(7,)]
            again.close()
        assert np.load(tmp_path / "a.npy") is np.load(tmp_path / "a.npy")
    assert (open, io.open, np.load, h5py.File, sqlite3.connect) == originals


def test_writing_still_works(tmp_path: Path) -> None:
    with kept_open():
        for text in ("first", "second"):
            with open(tmp_path / "a.txt", "w") as file:
                file.write(text)
        with open(file=tmp_path / "a.txt", mode="a") as file:
            file.write(" and last")
        read, write = os.pipe()
        os.close(write)
        with open(read, "rb") as file:
            assert file.read() == b""
    assert (tmp_path / "a.txt").read_text() == "second and last"


def test_files_that_are_too_large_are_rejected(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 30)
    with kept_open(), pytest.raises(OSError, match="too large"):
        (tmp_path / "large").read_bytes()


def test_the_way_files_are_read_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("line 1\x0c\nline 2\n")
    (tmp_path / "b.txt").write_text("one text")
    (tmp_path / "c.bin").write_bytes(bytes(100))
    (tmp_path / "d.bin").write_bytes(bytes(100))
    with kept_open() as reads:
        for _ in range(2):
            with open(tmp_path / "a.txt") as file:
                lines = file.readlines()
            assert lines == ["line 1\x0c\n", "line 2\n"]
            lines.clear()  # the next sample gets its own list
            with open(tmp_path / "a.txt") as file:
                assert [line for line in file] == ["line 1\x0c\n", "line 2\n"]  # noqa: C416  # as users write it
            assert (tmp_path / "b.txt").read_text() == "one text"
            assert len((tmp_path / "c.bin").read_bytes()) == 100
            with open(tmp_path / "d.bin", "rb") as raw:
                raw.seek(50)
                assert len(raw.read(10)) == 10
    kinds = {Path(path).name: kind for path, kind in reads.items()}
    assert kinds == {
        "a.txt": ("r", "lines"), "b.txt": ("r", "whole"), "c.bin": ("rb", "whole"), "d.bin": ("rb", ""),
    }  # fmt: skip


def test_parsed_json_is_reused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2]")
    load = json.load
    with kept_open() as reads:
        found = []
        for _ in range(2):
            with open(tmp_path / "a.json") as file:
                found.append(json.load(file))
    assert found[0] is found[1]
    assert found[0] == [1, 2]
    assert list(reads.values()) == [("r", "whole")]
    assert json.load is load
