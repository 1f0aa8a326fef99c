from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import feedline
import feedline.datasets
from feedline.errors import PackError
from feedline.tools.write import reading
from feedline.tools.write.inspection import inspect
from feedline.tools.write.reading import dataset_text
from feedline.tools.write.schema import Schema
from tests.tools.write.stores import FORMATS, SHARDED, SINGLE, without_workers

pytestmark = pytest.mark.sample(5)

SCHEMA = Schema.of([{"image": b"\xff\xd8\xff", "label": 3, "x": np.zeros(2)}])


def test_quotes_in_paths_are_escaped() -> None:
    assert eval(dataset_text("hdf5", 'it\'s "mine".h5', Schema(()), "dict").removeprefix("HDF5Dataset")) == (
        'it\'s "mine".h5'
    )


SHAPES: dict[str, list[Any]] = {
    "plain": [{"x": number, "s": "a", "b": b"x", "v": np.zeros(3)} for number in range(5)],
    "tuples": [(np.arange(2), 3)] * 5,
    "alone": [np.arange(3)] * 5,
    "lengths": [{"ids": np.arange(number + 1), "fixed": np.zeros(2), "y": number} for number in range(5)],
    "lengths in tuples": [(number, np.arange(number + 1)) for number in range(5)],
    "lengths alone": [np.arange(number + 1) for number in range(5)],
    "pictures": [{"image": np.zeros((number + 1, 4, 3), np.uint8)} for number in range(5)],
    "axes": [{"image": np.zeros((4, 4, 3)[: 2 + number % 2], np.uint8)} for number in range(5)],
    "nested": [{"boxes": [[1, 2]] * number, "more": {"a": number}} for number in range(5)],
    "none": [{"x": None if number % 2 else number, "y": number} for number in range(5)],
    "lengths and none": [{"x": None if number % 2 else np.arange(number + 1)} for number in range(5)],
    "dates": [{"x": np.datetime64("2020-01-01", "s") + np.timedelta64(number, "s")} for number in range(5)],
}


STACK = ("plain", "tuples", "alone", "dates")


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("format_", "out", "options"),
    [
        *((format_, SINGLE[format_], {}) for format_ in FORMATS),
        *((format_, out, {"samples_per_shard": 2}) for format_ in SHARDED for out in ("shards", "a.b")),
        ("lmdb", "bare", {}),
    ],
)
def test_every_printed_line_delivers_all_samples(
    tmp_path: Path, format_: str, out: str, options: dict[str, Any], name: str
) -> None:
    try:
        packed = feedline.pack(SHAPES[name], tmp_path / out, format=format_, workers=0, **options)
    except PackError:
        assert name not in STACK or (format_, name) in {("npy", "plain"), ("hdf5", "dates")}
        return
    for line in (packed.line, inspect(str(packed.path))["line"]):
        names: dict[str, Any] = {"feedline": feedline}
        exec(without_workers(line).replace("batch_size=32", "batch_size=1"), names)
        batches = list(names["loader"])
        names["loader"].dataset.close()
        assert len(batches) == 5, line
        assert ("collate_fn=list" in line) == (name not in STACK), line
        sample = SHAPES[name][0]
        assert name not in STACK or type(batches[0]) in (type(sample), list), line
        if isinstance(sample, dict):
            assert list(batches[0] if name in STACK else batches[0][0]) == list(sample), line


def test_lines_for_files_that_pack_did_not_write(tmp_path: Path) -> None:
    """If the inspected samples differ, the line collates them into lists."""
    pq.write_table(pa.table({"x": [[1], [1, 2]]}), tmp_path / "a.parquet")
    (tmp_path / "parts").mkdir()
    pq.write_table(pa.table({"x": [1], "y": [1]}), tmp_path / "parts" / "1.parquet")
    pq.write_table(pa.table({"z": [1], "y": [1]}), tmp_path / "parts" / "2.parquet")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for member in ("a.cls", "b.cls", "b.txt"):
            info = tarfile.TarInfo(member)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"1"))
    for size in (2, 3):
        (tmp_path / "photos" / "a").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (size, 2)).save(tmp_path / "photos" / "a" / f"{size}.png")
    for place in ("a.parquet", "parts", "a.tar", "photos"):
        names: dict[str, Any] = {"feedline": feedline}
        chosen = ["y"] if place == "parts" else None
        exec(without_workers(inspect(str(tmp_path / place), fields=chosen)["line"]), names)
        batch = next(iter(names["loader"]))
        assert list(batch) == ["y"] if place == "parts" else len(batch) == 2
        names["loader"].dataset.close()


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 2), (4, 4), (64, 4)])
def test_the_line_suggests_no_more_workers_than_there_are_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    monkeypatch.setattr(reading, "core_count", lambda: cores)
    for is_stream in (False, True):
        assert f"workers={workers})" in reading.loader_text(
            "LMDBDataset('a')", Schema.of([{"x": 1}]), is_stream=is_stream
        )
