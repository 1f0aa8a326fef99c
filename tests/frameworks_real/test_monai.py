"""MONAI's loaders on top of feedline's give the same samples as on torch's, random transforms included."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks_real.bases import assert_same
from tests.frameworks_real.conftest import need

need("monai")


def test_loaders_give_the_same_samples(tmp_path: Path) -> None:
    found = assert_same("monai_loaders.py", tmp_path)
    samples = [sample for batch in found["threads"]["epochs"][0] for sample in batch]
    assert samples == [[number, False] for number in range(7)], (
        "use_thread_workers=True: on other threads than the main one"
    )
