"""A fastai learner gets the same training and validation batches from feedline's loader as from torch's."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks_real.bases import assert_same
from tests.frameworks_real.conftest import need

need("fastai")


def test_a_learner_gets_the_same_batches(tmp_path: Path) -> None:
    for name, answer in assert_same("fastai_learners.py", tmp_path).items():
        for training in (True, False):
            samples = [sample for mode, batch in answer["seen"] if mode is training for sample in batch]
            assert sorted(samples) == sorted(2 * list(range(11))), name
