"""Timing of named stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from feedline import images
from feedline.datasets import FileDataset
from feedline.randomness import scope as randomness
from feedline.randomness.scope import Scope, stage


@pytest.fixture
def scope() -> Iterator[Scope]:
    scope = Scope()
    before = randomness.enter(scope)
    yield scope
    randomness.enter(before)


def test_times_add_up_and_a_stage_nested_in_itself_counts_once(scope: Scope) -> None:
    with stage("decode"):
        pass
    first = scope.stages["decode"]
    assert first > 0
    with stage("decode"), stage("decode"), stage("read"):
        assert scope.stages["decode"] < 0, "negative while the stage is entered"
    assert scope.stages["decode"] > first
    assert scope.stages["read"] > 0


def test_an_exception_propagates_and_the_time_counts(scope: Scope) -> None:
    with pytest.raises(KeyError), stage("decode"):
        raise KeyError
    assert scope.stages["decode"] > 0


def test_feedlines_sources_and_transforms_are_timed_automatically(tmp_path: Path, scope: Scope) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert len(FileDataset(tmp_path, transform=len).__getitems__([0])) == 1
    assert scope.stages.pop("transform") > 0
    images.Compose([images.Resize(4)])(np.zeros((8, 8, 3), np.uint8))
    assert scope.stages["transform"] > 0
