"""An mmengine runner gets the same batches from feedline's loader as from torch's, also if a config creates it."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks_real.bases import assert_same, flat
from tests.frameworks_real.conftest import need

need("mmengine")


def test_runners_get_the_same_batches(tmp_path: Path) -> None:
    found = assert_same("mmengine_runners.py", tmp_path)
    for name in ("epochs", "config"):
        seen = found[name]["seen"]
        assert sorted(flat(seen[:3])) == sorted(flat(seen[3:])), name
        assert set(flat(seen[:3])) == set(range(11)), name
