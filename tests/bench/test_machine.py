from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from feedline.bench.machine import cpu_quota, look, own_groups, process_limit
from feedline.cli.findings import find


def test_this_machine_can_be_looked_at() -> None:
    machine = look()
    assert machine.cores >= 1
    assert machine.torch is not None
    assert find(machine)
    assert json.loads(json.dumps(dataclasses.asdict(machine)))["feedline"].startswith("0.")


def test_looking_settles_no_start_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_start_method", None)
    assert look().start_method in ("fork", "forkserver", "spawn")


def test_torch_is_asked_for_without_being_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert look().torch is None


def test_a_broken_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("libtorch.so: not found")

    monkeypatch.setattr("feedline.bench.machine.require", broken)
    assert look().torch_trouble == "OSError: libtorch.so: not found"


def groups(tmp_path: Path, listing: str, **files: str) -> list[Path]:
    """Lay out control groups; file names have __ for / and ___ for a dot."""
    for name, text in files.items():
        path = tmp_path / name.replace("___", ".").replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "listing").write_text(listing)
    return own_groups(tmp_path, tmp_path / "listing")


def test_limits_of_a_control_group_and_of_those_above(tmp_path: Path) -> None:
    found = groups(
        tmp_path, "0::/job/step\n", job__cpu___max="150000 100000\n", job__step__cpu___max="max 100000\n",
        job__pids___max="300\n", pids___max="max\n",
    )  # fmt: skip
    assert cpu_quota(found) == 1.5
    assert process_limit(found) == 300


def test_limits_of_the_first_version_of_control_groups(tmp_path: Path) -> None:
    found = groups(
        tmp_path, "4:cpu,cpuacct:/box\n3:pids:/box\n", cpu__box__cpu___cfs_quota_us="200000",
        cpu__box__cpu___cfs_period_us="100000", pids__box__pids___max="77",
    )  # fmt: skip
    assert cpu_quota(found) == 2
    assert process_limit(found) == 77


def test_no_limits(tmp_path: Path) -> None:
    found = groups(tmp_path, "4:cpu,cpuacct:/box\n", cpu__box__cpu___cfs_quota_us="-1",
                   cpu__box__cpu___cfs_period_us="100000")  # fmt: skip
    assert cpu_quota(found) is None
    assert process_limit(found) is None
    assert own_groups(tmp_path, tmp_path / "nothing") == []
