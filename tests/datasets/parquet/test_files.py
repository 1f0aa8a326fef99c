from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from feedline.datasets.parquet.files import File, found_files
from feedline.errors import BadOption, SourceChanged, SourceError

ENDINGS = (".parquet",)


def make(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return [str(folder / name) for name in names]


def test_numbers_in_names_count_as_numbers(tmp_path: Path) -> None:
    expected = make(tmp_path, "part-2.parquet", "part-10.parquet", "part-100.parquet", "sub/part-1.parquet")
    assert found_files(tmp_path, ENDINGS) == tuple(expected)
    assert found_files(str(tmp_path / "part-*.parquet"), ENDINGS) == tuple(expected[:3])
    assert found_files(str(tmp_path / "**" / "*.parquet"), ENDINGS) == tuple(expected)


def test_hidden_files_and_other_endings_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, ".hidden.parquet", "_metadata.parquet", "a.csv", "a.parquet")
    assert found_files(tmp_path, ENDINGS) == (str(tmp_path / "a.parquet"),)


def test_names_with_brackets_are_names_if_they_exist(tmp_path: Path) -> None:
    (name,) = make(tmp_path, "a[1].parquet")
    assert found_files(name, ENDINGS) == (name,)


def test_a_list_keeps_its_order(tmp_path: Path) -> None:
    a, b = make(tmp_path, "a.parquet", "b.parquet")
    assert found_files([b, a, b], ENDINGS) == (b, a, b)
    assert found_files((Path(path) for path in (b, a)), ENDINGS) == (b, a)


@pytest.mark.parametrize("paths", [[], ()])
def test_no_paths(paths: Any) -> None:
    with pytest.raises(BadOption, match="empty"):
        found_files(paths, ENDINGS)


def test_a_file_that_changed(tmp_path: Path) -> None:
    (name,) = make(tmp_path, "a.parquet")
    file = File.at(name)
    file.check()
    os.utime(name, ns=(1, 1))
    with pytest.raises(SourceChanged, match="had 1 bytes and has 1 now, or was written again"):
        file.check()
    os.remove(name)
    with pytest.raises(SourceError, match="No such file"):
        file.check()
