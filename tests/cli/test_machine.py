from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from feedline.cli.machine import Machine, cpu_quota, find, look, own_groups, process_limit

GIB = 1 << 30
SOUND = Machine(
    system="Linux 6.1 x86_64",
    python="3.11.7",
    feedline="0.1.0",
    numpy="2.0.0",
    torch="2.13.0+cu126",
    torch_trouble=None,
    cuda="12.6",
    devices=("H200",),
    cores=16,
    machine_cores=16,
    cpu_quota=None,
    memory_bytes=128 * GIB,
    memory_limit_bytes=128 * GIB,
    free_bytes=100 * GIB,
    local_ranks=1,
    shared_bytes=64 * GIB,
    open_files=65536,
    open_files_most=None,
    processes=None,
    address_bytes=None,
    file_bytes=None,
    shares_arenas=True,
    start_method="fork",
)


def told(subject: str, **facts: Any) -> tuple[str, str | None]:
    """Return what is found, and advised, of a machine that differs from a sound one in some facts."""
    findings = find(dataclasses.replace(SOUND, **facts))
    (one,) = [finding for finding in findings if finding.subject == subject]
    return one.found, one.advice


def test_a_sound_machine_needs_no_change() -> None:
    assert [finding.subject for finding in find(SOUND) if finding.advice is not None] == []


def test_this_machine_can_be_looked_at() -> None:
    machine = look()
    assert machine.cores >= 1
    assert machine.torch is not None
    assert find(machine)
    assert json.loads(json.dumps(dataclasses.asdict(machine)))["feedline"].startswith("0.")


def test_looking_settles_no_start_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_start_method", None)
    assert look().start_method in ("fork", "forkserver", "spawn")


def test_a_quota_counts_as_cores() -> None:
    found, advice = told("cores", cpu_quota=2.5)
    assert found.startswith("2 cores of the machine's 16")
    assert advice is None


@pytest.mark.parametrize("facts", [{"cores": 1}, {"cpu_quota": 0.5}, {"local_ranks": 16}])
def test_workers_without_a_core_of_their_own_are_advised_against(facts: dict[str, Any]) -> None:
    _, advice = told("cores", **facts)
    assert advice is not None
    assert "num_workers=0" in advice


def test_ranks_share_the_cores_and_the_budget() -> None:
    assert "shared by 4 ranks: up to 4 workers" in told("cores", local_ranks=4)[0]
    assert "8.0 GiB of it" in told("memory", local_ranks=4)[0]


def test_a_limit_on_memory_is_told_apart_from_the_machines() -> None:
    found, advice = told("memory", memory_limit_bytes=8 * GIB)
    assert "8.0 GiB of the machine's 128.0 GiB" in found
    assert "2.0 GiB of it" in found
    assert advice is None


def test_too_little_free_memory_comes_with_a_budget_that_fits() -> None:
    _, advice = told("memory", free_bytes=4 * GIB)
    assert advice is not None
    assert f"memory_budget={GIB}" in advice


def test_unknown_memory_is_passed_over() -> None:
    machine = dataclasses.replace(SOUND, memory_bytes=None, memory_limit_bytes=None, free_bytes=None)
    assert "memory" not in [finding.subject for finding in find(machine)]


@pytest.mark.parametrize("size", [None, 64 << 20])
def test_small_shared_memory_is_trouble_for_others_only(size: int | None) -> None:
    found, advice = told("shared memory", shared_bytes=size)
    assert "feedline does not use it; torch's own loader needs more" in found
    assert advice is None


def test_the_portable_engine_needs_shared_memory() -> None:
    _, advice = told("shared memory", shared_bytes=64 << 20, shares_arenas=False)
    assert advice is not None
    assert "--shm-size" in advice
    assert told("shared memory", shared_bytes=None, shares_arenas=False, system="Darwin 24")[1] is None


def test_few_open_files_come_with_a_number() -> None:
    _, advice = told("open files", open_files=256)
    assert advice is not None
    assert "ulimit -n 65536" in advice
    assert "at most 24 workers" in advice
    assert "ulimit -n 4096" in str(told("open files", open_files=256, open_files_most=4096)[1])


def test_a_hard_limit_is_not_advised_against_in_vain() -> None:
    _, advice = told("open files", open_files=256, open_files_most=256)
    assert advice is not None
    assert "`ulimit" not in advice
    assert "hard limit" in advice


def test_few_processes() -> None:
    assert "ulimit -u" in str(told("processes", processes=100)[1])
    assert told("processes", processes=4000)[1] is None


def test_a_limit_on_the_size_of_files() -> None:
    assert told("size of files") == ("no limit (ulimit -f)", None)
    found, advice = told("size of files", file_bytes=8 * GIB)
    assert "8.0 GiB (ulimit -f)" in found
    assert "ulimit -f unlimited" in str(advice)


def test_a_limit_on_addresses() -> None:
    found, advice = told("addresses", address_bytes=8 * GIB)
    assert "8.0 GiB" in found
    assert "ulimit -v unlimited" in str(advice)


@pytest.mark.parametrize(("system", "to_change"), [("Linux 4.4", True), ("Darwin 24", False)])
def test_a_system_without_shared_arenas(system: str, to_change: bool) -> None:
    found, advice = told("process engine", shares_arenas=False, system=system)
    assert "portable" in found
    assert (advice is not None) is to_change


def test_start_methods() -> None:
    assert "nothing is pickled" in told("start method")[0]
    assert "picklable" in told("start method", start_method="forkserver")[0]


def test_an_old_torch_is_to_be_upgraded() -> None:
    assert "2.4" in str(told("torch", torch="2.3.1+cpu")[1])
    assert told("torch", torch="2.4.0a0+git1234")[1] is None


def test_no_torch_is_no_fault() -> None:
    found, advice = told("torch", torch=None)
    assert "feedline.Loader works" in found
    assert advice is None


def test_a_torch_that_cannot_be_imported_is_one() -> None:
    found, advice = told("torch", torch=None, torch_trouble="OSError: libcudart.so.12")
    assert "libcudart" in found
    assert "pip install" in str(advice)


def test_torch_is_asked_for_without_being_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert look().torch is None


def test_a_broken_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("libtorch.so: not found")

    monkeypatch.setattr("feedline.cli.machine.require", broken)
    assert look().torch_trouble == "OSError: libtorch.so: not found"


def test_no_device_is_no_fault() -> None:
    assert told("CUDA", cuda=None, devices=())[1] is None
    assert "H200" in told("CUDA")[0]


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
