"""Which files a user means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.hdf5.paths import files_of
from feedline.datasets.natural import natural
from feedline.errors import BadOption


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_numbers_count_as_numbers(numbers: list[int]) -> None:
    paths = [f"part-{number}.h5" for number in numbers]
    assert sorted(paths, key=natural) == [f"part-{number}.h5" for number in sorted(numbers)]


def test_patterns_paths_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b/10.h5", "b/9.h5", "a.h5", "[x].h5", "b/c/1.h5"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)

    def names(given: Any) -> list[str]:
        return [os.path.relpath(path, tmp_path) for path in files_of(given)]

    assert names("b/*.h5") == ["b/9.h5", "b/10.h5"]
    assert names("b/**/*.h5") == ["b/9.h5", "b/10.h5", "b/c/1.h5"]
    assert names(["b/*.h5", Path("a.h5")]) == ["b/9.h5", "b/10.h5", "a.h5"]
    assert names("[x].h5") == ["[x].h5"]  # there is a file of that name
    assert names(path for path in ("a.h5", "a.h5")) == ["a.h5", "a.h5"]
    assert names("nothing.h5") == ["nothing.h5"]  # opening it says what is wrong
    assert all(map(os.path.isabs, files_of("b/*.h5")))
    for wrong in ("*.none", [], 3, [3], b"a.h5", "b", None):
        with pytest.raises(BadOption):
            files_of(wrong)  # type: ignore[arg-type]
