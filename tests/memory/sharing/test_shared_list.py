"""Workers read shared values. A separate file without torch, since spawned workers import it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import feedline


class Lengths:
    def __init__(self, paths: Any, labels: Any) -> None:
        self.paths = paths
        self.labels = labels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.paths[index], self.labels[self.paths[index]]


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_read_shared_values(start_method: str) -> None:
    paths = [f"a/{number:03d}.jpg" for number in range(40)]
    labels = {path: number * number for number, path in enumerate(paths)}
    dataset = Lengths(feedline.share(paths), feedline.share(labels))
    found = list(feedline.Loader(dataset, 8, workers=2, start_method=start_method))
    assert [path for batch in found for path in batch[0]] == paths
    assert np.concatenate([batch[1] for batch in found]).tolist() == list(labels.values())
