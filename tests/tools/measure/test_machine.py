from __future__ import annotations

import dataclasses
import json
import sys

import pytest

import feedline
from feedline.tools.advise.machine import find
from feedline.tools.measure.machine import collect_details


def test_details_of_this_machine_are_collected() -> None:
    machine = collect_details()
    assert machine.cores >= 1
    assert machine.torch is not None
    assert find(machine)
    assert json.loads(json.dumps(dataclasses.asdict(machine)))["feedline"] == feedline.__version__


def test_collecting_details_does_not_fix_the_start_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_start_method", None)
    assert collect_details().start_method in ("fork", "forkserver", "spawn")


def test_details_are_collected_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert collect_details().torch is None


def test_a_broken_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("libtorch.so: not found")

    monkeypatch.setattr("feedline.tools.measure.machine.require", broken)
    assert collect_details().torch_trouble == "OSError: libtorch.so: not found"
