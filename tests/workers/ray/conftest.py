"""One local cluster for all tests of a process. It takes ten seconds to start and has its own processes and threads."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Ray with a small cluster on this machine, shut down after the tests of this folder."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=8, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replaces the check of all other tests, since Ray keeps processes and files: no actor and no thread is left."""
    if "cluster" not in request.fixturenames:
        yield
        return
    ray = request.getfixturevalue("cluster")
    yield
    if request.node.stash.get(_failed, True):
        return  # the traceback of a failed test keeps its loader alive, so do not fail twice
    gc.collect()
    # Starting an actor took more than 15 s with a load of 20 on two cores.
    deadline_s = time.monotonic() + 90
    while (free := ray.available_resources().get("CPU", 0)) < 8 and time.monotonic() < deadline_s:
        time.sleep(0.05)  # Ray updates its counts with a delay
    assert free == 8, "an actor is left"
    assert not [thread.name for thread in threading.enumerate() if thread.name == "feedline-ray"]
