"""Formats recognised by name. Recognition by content is tested in test_recognition.py."""

from __future__ import annotations

import pytest

from feedline.datasets.derived.formats import format_by_name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.tar", "tar"),
        ("a.tar.gz", "tar"),
        ("a.TGZ", "tar"),
        ("shard-{000..009}.tar", "tar"),
        ("s3://bucket/a.parquet", "parquet"),
        ("a.feather", "arrow"),
        ("part-*.csv.gz", "csv"),
        ("a.gz", None),
        ("photos", None),
    ],
)
def test_formats_by_name(path: str, name: str | None) -> None:
    assert format_by_name(path) == name
