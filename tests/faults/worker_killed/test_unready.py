"""Workers that fail to start."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from feedline.errors import WorkerDied
from tests.faults.loaders import (
    Bad,
    Numbers,
    make,
    mostly_loader,
)

pytestmark = [pytest.mark.filterwarnings("ignore::feedline.errors.WorkerWarning"), pytest.mark.sample(5)]


def fail(worker: int) -> None:
    raise Bad(f"worker {worker} finds no disk")


@mostly_loader
@pytest.mark.parametrize("engine", ["process", "thread"])
def test_an_init_function_that_raises_ends_the_iteration_with_its_error(loader_kind: str, engine: str) -> None:
    loader = make(loader_kind, Numbers(20), workers=2, engine=engine, worker_init=fail)
    batches = iter(loader)
    with pytest.raises(Bad, match="finds no disk") as caught:
        list(batches)
    assert "worker" in "\n".join(caught.value.__notes__)
    with pytest.raises(Bad):
        next(batches)
    assert loader.stats()["restarted_workers"] == 0
    with pytest.raises(Bad):
        list(loader)


def leave(worker: int) -> None:
    os._exit(3)


def be_killed(worker: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@mostly_loader
@pytest.mark.parametrize(
    ("init", "restarts", "times", "how"),
    [(leave, 10**6, 1, "exit code 3"), (be_killed, 11, 12, "SIGKILL")],
)
def test_a_worker_that_never_starts_is_given_up_and_the_error_says_why(
    loader_kind: str, init: Any, restarts: int | None, times: int, how: str
) -> None:
    """A worker that is killed is replaced as often as the user's `restarts` allows, since the cause may be external."""
    loader = make(loader_kind, Numbers(20), workers=1, worker_init=init, restarts=restarts)
    with pytest.raises(WorkerDied, match=how) as caught:
        list(loader)
    assert "worker_init_fn, unpickling the dataset" in str(caught.value)
    assert loader.stats()["restarted_workers"] == times - 1
