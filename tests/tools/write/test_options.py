from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.datasets.framework.checksums import sealed
from feedline.errors import BadOption
from feedline.tools.write.options import Options, as_path, check_place
from feedline.tools.write.writers.contract import FORMATS


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("out", {}, r"does not select a format.*--format lmdb\|hdf5\|tar\|parquet\|npy"),
        ("out.h5", {"format": "zarr"}, "not one of lmdb"),
        ("out.h5", {"samples_per_shard": 10}, "Shards are files in a folder"),
        ("out", {"format": "lmdb", "samples_per_shard": 10}, "lmdb does not support shards"),
        ("out", {"format": "tar", "samples_per_shard": 0}, "samples_per_shard=0"),
        ("out.h5", {"compression": "zip"}, "supports gzip, lzf"),
        ("out.h5", {"quality": 0}, "between 1 and 100"),
        ("out.h5", {"resize": -1}, "neither a positive number of pixels"),
        ("out.h5", {"resize": (1, 2, 3)}, "3 numbers. Give a width and a height"),
        ("out.h5", {"encode": "bmp"}, "not one of 'keep'"),
        ("out.h5", {"encode": "jpg"}, "no field of the first samples is one"),
        ("out.h5", {"on_error": "retry"}, "neither"),
        ("out.h5", {"ragged": "x"}, "ragged=.*is not a list of names"),
        ("out.h5", {"fields": "label"}, "not a list of names"),
        ("out.h5", {"fields": []}, "names no field"),
        ("out.h5", {"fields": ["a", "a"]}, "twice"),
        ("out.h5", {"fields": ["group/x"]}, r"--fields x=group/x \(fields={'x': 'group/x'} in Python\)"),
        ("out.h5", {"fields": {"a\nb": "a"}}, "allows the field name"),
        ("memory://bucket/a.tar", {}, "name of one file.*memory://bucket/a --format tar"),
        ("memory://bucket/a", {"format": "lmdb"}, "lmdb is not read from stores.*tar or parquet"),
        ("memory://bucket/a*", {"format": "tar"}, "not the address of a folder"),
        ("https://host/a", {"format": "tar"}, "web server"),
        ("nonesuch://bucket/a", {"format": "tar"}, "nonesuch:// are unknown"),
    ],
)
def test_rejects_options_that_cannot_work(tmp_path: Path, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        feedline.pack([{"x": 1.5}], name if "://" in name else tmp_path / name, workers=0, **options)


@pytest.mark.parametrize("out", [3, "/", b"a.h5", "s3://bucket/tokens.bin"])
def test_rejects_outputs_that_are_not_local_paths(out: Any) -> None:
    with pytest.raises(BadOption):
        as_path(out)


@pytest.fixture
def places(tmp_path: Path) -> Path:
    (tmp_path / "file.tar").touch()
    (tmp_path / "folder.tar").mkdir()
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "feedline.json").write_text(json.dumps(sealed({"feedline": "1.0"})))
    (tmp_path / "link.tar").symlink_to(tmp_path / "file.tar")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "overwrite", "is_sharded"),
    [("new", False, True), ("none/yet/new.tar", False, False), ("file.tar", True, False), ("ours", True, True)],
)
def test_outputs_that_may_be_written(places: Path, name: str, overwrite: bool, is_sharded: bool) -> None:
    assert check_place(places / name, FORMATS["tar"], Options(), overwrite=overwrite) == is_sharded
    assert (places / name).parent.is_dir()


@pytest.mark.parametrize(
    ("name", "format_", "overwrite", "message"),
    [
        ("file.tar", "tar", False, "exists already"),
        ("ours", "npy", False, "exists already"),
        ("file.tar/new.tar", "tar", False, "cannot be written"),
        ("folder.tar", "tar", True, "is a folder, but would become a file"),
        ("file.tar", "npy", True, "is a file, but would become a folder"),
        ("link.tar", "tar", True, "exists already"),
    ],
)
def test_outputs_that_may_not_be_written(places: Path, name: str, format_: str, overwrite: bool, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        check_place(places / name, FORMATS[format_], Options(), overwrite=overwrite)
