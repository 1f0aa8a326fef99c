"""Failing samples are retried."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.faults import Retry
from tests.faults.bad_samples.samples import Flaky, cut
from tests.faults.deaths import Once
from tests.faults.loaders import (
    Numbers,
    batches_of,
    everywhere,
    make,
    on,
    plain,
)

pytestmark = pytest.mark.sample(15)


@everywhere
def test_a_sample_is_retried_until_it_works(loader_kind: str, engine: str, tmp_path: Path) -> None:
    once = Once(tmp_path)
    dataset = Flaky(once, 12, {2, 7}, times=2)
    loader = make(loader_kind, dataset, on_error=Retry(3, wait_s=0.001), **on(engine))
    assert batches_of(loader) == cut(range(12))
    assert [(fault.index, fault.action, fault.attempt) for fault in loader.faults] == [(2, "retry", 3), (7, "retry", 3)]
    assert once.count(2) == once.count(7) == 3
    assert not loader.faults.quarantined
    assert loader.stats()["faults"]["retry"] == 2


def test_a_retry_in_a_thread_does_not_outlive_its_loader() -> None:
    """A worker that waits for half an hour ends when its batch is no longer needed."""
    began = threading.Event()

    class Slow(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                began.set()
            return super().__getitem__(index)

    policy = Retry(1, wait_s=1800.0, longest_s=1800.0)
    batches = iter(feedline.Loader(Slow(8, {4}), 4, workers=1, engine="thread", on_error=policy))
    assert plain(next(batches)) == [0, 1, 2, 3]
    assert began.wait(100)
    batches.close()
    # The thread is gone, which the leak check of every test verifies.
