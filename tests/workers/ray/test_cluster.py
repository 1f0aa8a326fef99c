"""Unreachable clusters, and Ray versions that are missing or too old."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from feedline.errors import MissingExtra, WorkerStartError
from feedline.workers.ray import cluster
from feedline.workers.ray.options import RayOptions


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"feedline\[ray\]"):
        cluster.connect(RayOptions(), 1)


def test_an_old_ray_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__version__="2.9.3"))
    with pytest.raises(WorkerStartError, match=r"2\.9\.3 is too old: engine='ray' needs 2\.49"):
        cluster.connect(RayOptions(), 1)


@pytest.mark.parametrize("by_environment", [False, True])
def test_an_unreachable_cluster_is_reported(monkeypatch: pytest.MonkeyPatch, by_environment: bool) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__version__="2.60.0", is_initialized=lambda: False))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        if by_environment:
            monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(WorkerStartError, match=f"There is no answer from the Ray cluster at '{address}'"):
            cluster.connect(RayOptions(address=None if by_environment else address), 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_of_a_connected_program_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(__version__="2.60.0", is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ray", fake)
    pid = os.fork()
    if not pid:
        try:
            cluster.connect(RayOptions(), 1)
        except WorkerStartError as exc:
            os._exit(7 if f"forked from process {os.getppid()}" in str(exc) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def _module(**functions: Callable[[], object]) -> ModuleType:
    """Return a stand-in for the module `ray`."""
    module = ModuleType("ray")
    vars(module).update(functions)
    return module


def test_one_more_worker_needs_free_resources() -> None:
    fake = _module(nodes=lambda: [], available_resources=lambda: {"CPU": 0.5, "decoder": 9.0})
    with pytest.raises(WorkerStartError, match="no resources for worker 4"):
        cluster.check_room(fake, RayOptions(), 4)
    cluster.check_room(fake, RayOptions(num_cpus=0.5, resources={"decoder": 3}), 4)
