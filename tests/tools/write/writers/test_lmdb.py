from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from feedline.datasets.formats.lmdb.dataset import META_KEY, key_of
from feedline.memory.sharing import records
from tests.tools.write.stores import pack_as, read


def test_lmdb_reads_the_output(tmp_path: Path) -> None:
    path = pack_as("lmdb", tmp_path, [{"x": np.arange(number), "n": number} for number in range(5)]).path
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment, environment.begin() as all_:
        entries = dict(all_.cursor())
    assert list(entries) == [*map(key_of, range(5)), META_KEY]
    assert records.decode(entries[key_of(3)])["x"].tolist() == [0, 1, 2]
    assert json.loads(entries[META_KEY])["encoding"] == "record"


def test_the_file_is_no_larger_than_necessary(tmp_path: Path) -> None:
    path = pack_as("lmdb", tmp_path, [{"x": bytes(100)} for _ in range(10)]).path
    assert path.stat().st_size < 200_000, "not the space reserved while writing"
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment:
        assert environment.info()["map_size"] < 100 << 20


@pytest.mark.parametrize("value", [b"", bytes(5_000_000), "x" * 100_000, {"a": [1, None, {"b": b"x"}]}, None, 2**80])
def test_values_of_all_kinds_can_be_stored(tmp_path: Path, value: Any) -> None:
    assert read(pack_as("lmdb", tmp_path, [{"x": value}]))[0]["x"] == value
