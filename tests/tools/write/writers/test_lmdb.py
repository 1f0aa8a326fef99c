from __future__ import annotations

import json
from pathlib import Path

import lmdb
import numpy as np

from feedline.datasets.formats.lmdb.dataset import META_KEY, key_of
from feedline.memory.sharing import records
from tests.tools.write.stores import pack_as


def test_lmdb_reads_the_output(tmp_path: Path) -> None:
    path = pack_as("lmdb", tmp_path, [{"x": np.arange(number), "n": number} for number in range(5)]).path
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment, environment.begin() as all_:
        entries = dict(all_.cursor())
    assert list(entries) == [*map(key_of, range(5)), META_KEY]
    assert records.decode(entries[key_of(3)])["x"].tolist() == [0, 1, 2]
    assert json.loads(entries[META_KEY])["encoding"] == "record"
