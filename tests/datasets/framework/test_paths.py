from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.framework.paths import File, found_files, natural
from feedline.errors import BadOption, SourceChanged, SourceError

ENDINGS = (".parquet",)


def make(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return [str(folder / name) for name in names]


def test_hidden_files_and_other_endings_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, ".hidden.parquet", "_metadata.parquet", "a.csv", "a.parquet")
    assert found_files(tmp_path, ENDINGS) == (str(tmp_path / "a.parquet"),)


def test_copies_and_unfinished_files_of_other_programs_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, ".ipynb_checkpoints/a.parquet", "_temporary/0/a.parquet", "_delta_log/1.parquet", "2026/a.parquet")
    assert found_files(tmp_path, ENDINGS) == (str(tmp_path / "2026" / "a.parquet"),)


def test_a_folder_whose_name_has_the_ending_is_not_a_file(tmp_path: Path) -> None:
    """Spark writes such folders."""
    names = make(tmp_path, "train.parquet/part-0.parquet", "train.parquet/part-1.parquet")
    assert found_files(tmp_path, ENDINGS) == tuple(names)


def test_a_file_that_two_endings_fit_comes_once(tmp_path: Path) -> None:
    names = make(tmp_path, "a.tfrecord-00000-of-00001.gz")
    assert found_files(tmp_path, (".tfrecord-*", ".tfrecord-*.gz")) == tuple(names)


def test_a_changed_file_is_detected(tmp_path: Path) -> None:
    (name,) = make(tmp_path, "a.parquet")
    file = File.at(name)
    file.check()
    os.utime(name, ns=(1, 1))
    with pytest.raises(SourceChanged, match="had 1 bytes and now has 1, or was written again"):
        file.check()
    os.remove(name)
    with pytest.raises(SourceError, match="No such file"):
        file.check()


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_natural_order_equals_the_order_of_numbers(numbers: list[int]) -> None:
    paths = [f"part-{number}.h5" for number in numbers]
    assert sorted(paths, key=natural) == [f"part-{number}.h5" for number in sorted(numbers)]


def test_patterns_paths_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b/10.h5", "b/9.h5", "a.h5", "[x].h5", "b/c/1.h5"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)

    def names(given: Any) -> list[str]:
        return [os.path.relpath(path, tmp_path) for path in found_files(given, (".h5",))]

    assert names("b/*.h5") == ["b/9.h5", "b/10.h5"]
    assert names("b/**/*.h5") == ["b/9.h5", "b/10.h5", "b/c/1.h5"]
    assert names(["b/*.h5", Path("a.h5")]) == ["b/9.h5", "b/10.h5", "a.h5"]
    assert names("[x].h5") == ["[x].h5"]  # there is a file of that name
    assert names(path for path in ("a.h5", "a.h5")) == ["a.h5", "a.h5"]
    assert names("nothing.h5") == ["nothing.h5"]  # opening it raises the error
    assert all(map(os.path.isabs, found_files("b/*.h5", (".h5",))))
    assert names("b") == ["b/9.h5", "b/10.h5", "b/c/1.h5"]
    for wrong in ([], 3, [3], b"a.h5", None):
        with pytest.raises(BadOption):
            found_files(wrong, (".h5",))  # type: ignore[arg-type]
    for missing in ("*.none", "c"):
        (tmp_path / "c").mkdir(exist_ok=True)
        with pytest.raises(SourceError):
            found_files(missing, (".h5",))
