"""Workers that do not get ready."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from feedline.errors import WorkerRestarted
from tests.faults.deaths import Once
from tests.faults.loaders import (
    Bad,
    Numbers,
    batches_of,
    make,
    one_of_both,
    the_other_of_both,
)

pytestmark = pytest.mark.filterwarnings("ignore::feedline.errors.WorkerRestarted")


class Init:
    """Fails so many times in all."""

    def __init__(self, once: Once, times: int) -> None:
        self.once = once
        self.times = times

    def __call__(self, worker: int) -> None:
        if self.once.times("init") <= self.times:
            raise Bad(f"worker {worker} finds no disk")


@the_other_of_both
@pytest.mark.parametrize("engine", ["process", "thread"])
def test_an_init_that_works_at_the_second_start(loader_kind: str, engine: str, tmp_path: Path) -> None:
    init = Init(Once(tmp_path), 1)
    loader = make(loader_kind, Numbers(20), workers=2, engine=engine, worker_init=init)
    with pytest.warns(WorkerRestarted, match="finds no disk"):
        assert list(itertools.chain(*batches_of(loader))) == list(range(20))
    assert loader.stats()["restarted_workers"] == 1


@one_of_both
@pytest.mark.parametrize("engine", ["process", "thread"])
def test_an_init_that_never_works(loader_kind: str, engine: str, tmp_path: Path) -> None:
    loader = make(loader_kind, Numbers(20), workers=2, engine=engine, worker_init=Init(Once(tmp_path), 999))
    batches = iter(loader)
    with pytest.raises(Bad, match="finds no disk") as caught:
        list(batches)
    assert "worker" in "\n".join(caught.value.__notes__)
    with pytest.raises(Bad):
        next(batches)
    assert 3 <= loader._supply.counters.restarts + 1 <= 5
    with pytest.raises(Bad):
        list(loader)


@the_other_of_both
def test_an_init_that_fails_without_restarts(loader_kind: str, tmp_path: Path) -> None:
    loader = make(loader_kind, Numbers(20), workers=2, worker_init=Init(Once(tmp_path), 1), restarts=0)
    with pytest.raises(Bad, match="finds no disk"):
        list(loader)
