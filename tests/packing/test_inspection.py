"""Facts for people: types, statistics, a line that reads it. Nothing is unpickled or run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import feedline
from feedline.datasets import CachedDataset
from feedline.errors import FeedlineError
from feedline.packing.inspection import Statistics, inspect, type_text, value_text

pytestmark = pytest.mark.sample(5)


def known(*values: Any) -> dict[str, Any]:
    statistics = Statistics()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in values:
            statistics.add({"x": value})
    (field,) = statistics.fields()
    return {name: fact for name, fact in field.items() if name != "name"}


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ((1, 2, 6), {"type": "int", "min": 1, "max": 6, "mean": 3.0}),
        ((True, False), {"type": "bool", "min": 0, "max": 1, "mean": 0.5}),
        ((0.5, float("nan"), float("inf")), {"type": "float", "min": 0.5, "max": 0.5, "mean": 0.5}),
        ((float("nan"),), {"type": "float"}),
        ((None, 3), {"type": "None or int", "min": 3, "max": 3, "mean": 3.0, "missing": 1}),
        ((np.zeros((0, 3), np.float32),), {"type": "float32[0, 3]"}),
        (("", "abc"), {"type": "str", "shortest": 0, "longest": 3}),
        ((b"ab",), {"type": "bytes", "shortest": 2, "longest": 2}),
        (({"a": 1}, [2]), {"type": "dict or list"}),
        ((np.array(["a"]),), {"type": "str32[1]"}),
        ((np.uint8(200), np.uint8(100)), {"type": "uint8", "min": 100, "max": 200, "mean": 150.0}),
    ],
)
def test_statistics(values: tuple[Any, ...], facts: dict[str, Any]) -> None:
    assert known(*values) == facts


def test_many_types_are_counted() -> None:
    assert known(*(np.zeros(length) for length in range(9)))["type"] == "float64[0] and 8 others"


def test_sizes_of_pictures(tmp_path: Path) -> None:
    for number, size in enumerate([(10, 20), (10, 20), (30, 15)]):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.new("RGB", size).save(tmp_path / "ab"[number % 2] / f"{number}.png")
    (tmp_path / "a" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (tmp_path / "b" / "empty.png").touch()
    (tmp_path / "b" / "text.png").write_bytes(b"no picture")
    facts = inspect(str(tmp_path))
    image = facts["fields"][0]
    assert (image["smallest picture"], image["largest picture"]) == ([10, 15], [30, 20])
    assert (image["unreadable pictures"], image["such as"]) == (3, "a/broken.png")
    assert "collate=list" in facts["line"]


@pytest.mark.slow
def test_nulls_that_come_late_count_for_the_line(tmp_path: Path) -> None:
    numbers = [None if number > 200 and number % 3 == 0 else number for number in range(400)]
    pq.write_table(pa.table({"id": range(400), "late": numbers}), tmp_path / "late.parquet")
    facts = inspect(str(tmp_path / "late.parquet"))
    assert facts["fields"][1]["missing"] > 10
    assert "collate=list" in facts["line"]
    pq.write_table(pa.table({"id": range(400), "sizes": [[1] * (1 + n // 99) for n in range(400)]}), tmp_path / "b.pq")
    assert "feedline.collate.pad(fields=['sizes'])" in inspect(str(tmp_path / "b.pq"))["line"]


def test_rows_that_repeat_are_not_all_that_is_looked_at(tmp_path: Path) -> None:
    rows = "".join(f"{number},{number if number % 4 else ''},\n" for number in range(2000))
    (tmp_path / "t.csv").write_text(f"a,b,c\n{rows}")
    facts = inspect(str(tmp_path / "t.csv"))
    assert sorted(facts["fields"][1]["type"].split(" or ")) == ["None", "int64"]
    assert 10 < facts["fields"][1]["missing"] < 40
    assert facts == inspect(str(tmp_path / "t.csv")), "the same samples in each run"


def test_the_source_knows_the_type_of_a_column_without_values(tmp_path: Path) -> None:
    numbers = pa.array([None] * 300, pa.int32())
    pq.write_table(pa.table({"x": numbers}), tmp_path / "x.parquet")
    assert inspect(str(tmp_path / "x.parquet"))["fields"][0]["type"] == "int32 or None"


class Trap:
    def __reduce__(self) -> Any:
        return os._exit, (13,)


def objects(folder: Path) -> None:
    np.save(folder / "o.npy", np.array([Trap(), None], object), allow_pickle=True)


def archive(folder: Path) -> None:
    np.savez_compressed(folder / "a.npz", o=np.array([Trap(), None], object))
    os.rename(folder / "a.npz", folder / "o.npy.npz")


def cache(folder: Path) -> None:
    feedline.precompute([{"x": {1, 2}}], folder, pickle=True, progress=False).close()


@pytest.mark.parametrize("make", [objects, archive, cache])
def test_pickles_are_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path)
    for path in (tmp_path, *tmp_path.iterdir()):
        with pytest.raises(FeedlineError):
            inspect(str(path))


def test_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text("import os\nos._exit(13)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FeedlineError, match="nothing at"):
        inspect("trap:dataset")


def test_a_cache_that_is_not_complete(tmp_path: Path) -> None:
    cached = CachedDataset([1, 2, 3], disk=tmp_path)
    assert cached[1] == 2
    cached.close()
    with pytest.raises(FeedlineError, match=str(tmp_path)):
        inspect(str(tmp_path))


def test_texts() -> None:
    assert type_text(np.float16(1)) == "float16"
    assert value_text("x" * 200).endswith("...")
    assert len(value_text("x" * 200)) == 100
    assert value_text(np.arange(3)) == "int64[3], [0, 1, 2]"
    assert value_text(np.int64(3)) == "3"
    assert value_text(np.zeros((2, 0))) == "float64[2, 0]"
