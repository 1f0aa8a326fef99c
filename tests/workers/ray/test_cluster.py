"""Unreachable clusters, and Ray versions that are missing or too old."""

from __future__ import annotations

import os
import socket
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from feedline.errors import BadOption, MissingExtra, WorkerStartError, WorkerWarning
from feedline.workers.ray import cluster
from feedline.workers.ray.engine import RayEngine, _Worker
from feedline.workers.ray.options import RayOptions


def _module(**functions: Callable[[], object]) -> ModuleType:
    """Return a stand-in for the module `ray`."""
    module = ModuleType("ray")
    vars(module).update(functions)
    return module


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


def test_a_cluster_with_another_ray_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with Ray: 2.51.0")

    fake = SimpleNamespace(__version__="2.60.0", is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(WorkerStartError, match=r"Version mismatch.*this program has Ray 2\.60\.0"):
        cluster.connect(RayOptions(address="auto"), 1)


def test_shortage_says_whether_any_node_could_ever_hold_a_worker() -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 64.0}}]
    fake = _module(nodes=lambda: nodes, available_resources=lambda: {"CPU": 1.0})
    assert "no node of the cluster has that" in cluster.shortage(fake, RayOptions(num_cpus=8))
    assert "the whole cluster of 1 node has {'CPU': 1.0} free" in cluster.shortage(fake, RayOptions(num_cpus=2))


def test_the_cluster_is_asked_once_why_workers_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(*_: object) -> str:
        asked.append("asked")
        return "There is no buffer."

    monkeypatch.setattr(cluster, "shortage", ask)
    engine = RayEngine(9)
    engine._ray = SimpleNamespace(is_initialized=lambda: False)
    since_s = time.monotonic() - 20
    engine._workers = [_Worker(number, 0, None, deque(), since_s=since_s) for number in range(9)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(20):  # a waiting training loop collects twenty times a second
            assert engine.collect(0.0) == []
    assert [each.category for each in warned] == [WorkerWarning]
    assert asked == ["asked"]


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


def test_one_more_worker_needs_free_resources() -> None:
    fake = _module(nodes=lambda: [], available_resources=lambda: {"CPU": 0.5, "decoder": 9.0})
    with pytest.raises(WorkerStartError, match="no resources for worker 4"):
        cluster.check_room(fake, RayOptions(), 4)
    cluster.check_room(fake, RayOptions(num_cpus=0.5, resources={"decoder": 3}), 4)
    cluster.check_room(fake, RayOptions(pool="shared"), 4)


@pytest.mark.parametrize("options", [{"num_cpus": -1}, {"num_cpus": "2"}, {"start_timeout_s": 0}, {"pool": ""}])
def test_invalid_options_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(BadOption, match=next(iter(options))):
        RayOptions(**options)  # type: ignore[arg-type]  # on purpose
