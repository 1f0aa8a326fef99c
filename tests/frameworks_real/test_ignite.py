"""Ignite engines get the same batches from feedline's loader as from torch's, also from one that they rebuild."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks_real.bases import assert_same, flat
from tests.frameworks_real.conftest import need

need("ignite")


def test_engines_get_the_same_batches(tmp_path: Path) -> None:
    found = assert_same("ignite_engines.py", tmp_path)
    assert all(answer["is ours"] for answer in found.values())
    assert sorted(flat(found["deterministic"]["seen"][:4])) == list(range(7))
