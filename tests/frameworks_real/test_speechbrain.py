"""SpeechBrain's checkpoints: a loader on top of feedline's continues with exactly the remaining samples."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks_real.bases import assert_same
from tests.frameworks_real.conftest import need

need("speechbrain")


def test_a_loaded_checkpoint_continues_where_it_was_saved(tmp_path: Path) -> None:
    for name, answer in assert_same("speechbrain_loaders.py", tmp_path).items():
        samples = [sample for batch in [*answer["got"], *answer["rest"]] for sample in batch]
        assert sorted(samples) == list(range(11)), name
        assert answer["count"] == 6, name
