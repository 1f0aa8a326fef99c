"""One local cluster for all tests of a process. It starts in ten seconds, and has processes and threads of its own."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Ray, with a small cluster on this machine. Torn down when the tests of this folder are through."""
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
    """In the place of the check of all other tests: Ray keeps processes and files. No actor and no thread is left."""
    if "cluster" not in request.fixturenames:
        yield
        return
    ray = request.getfixturevalue("cluster")
    yield
    if request.node.stash.get(_failed, True):
        return  # the traceback of a failed test keeps its loader alive: not a second failure
    gc.collect()
    # An actor of a pool that is still starting when its loaders leave has to start first, and ends five seconds later.
    # Starting took more than 15 s with a load of 20 on two cores.
    deadline_s = time.monotonic() + 90
    while (free := ray.available_resources().get("CPU", 0)) < 8 and time.monotonic() < deadline_s:
        time.sleep(0.05)  # Ray takes a moment to count
    assert free == 8, "an actor is left"
    assert not [thread.name for thread in threading.enumerate() if thread.name == "feedline-ray"]
