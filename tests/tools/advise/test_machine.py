from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from feedline.tools.advise.machine import find
from feedline.tools.measure.machine import Machine

GIB = 1 << 30
SOUND = Machine(
    system="Linux 6.1 x86_64",
    processor="Neoverse-N1",
    python="3.11.7",
    feedline="0.1.0",
    numpy="2.0.0",
    torch="2.13.0+cu126",
    torch_trouble=None,
    cuda="12.6",
    devices=("H200",),
    decodes_jpegs=True,
    cuda_queues=None,
    torch_threads=16,
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


def finding_about(subject: str, **details: Any) -> tuple[str, str | None]:
    """Return the finding about a subject and its fix, for a machine that differs from a sound one in some details."""
    findings = find(dataclasses.replace(SOUND, **details))
    (one,) = [finding for finding in findings if finding.name == subject]
    return f"{one.problem} {one.evidence}".rstrip(), one.fix


def test_a_sound_machine_needs_no_fix() -> None:
    assert [finding.name for finding in find(SOUND) if finding.fix is not None] == []


def test_a_cpu_quota_limits_the_cores() -> None:
    found, advice = finding_about("cores", cpu_quota=2.5)
    assert found.startswith("2 cores of the machine's 16")
    assert advice is None


@pytest.mark.parametrize("details", [{"cores": 1}, {"cpu_quota": 0.5}, {"local_ranks": 16}])
def test_no_workers_are_advised_if_they_have_no_core_of_their_own(details: dict[str, Any]) -> None:
    _, advice = finding_about("cores", **details)
    assert advice is not None
    assert "num_workers=0" in advice


def test_ranks_share_the_cores_and_the_budget() -> None:
    assert "shared by 4 ranks: up to 4 workers" in finding_about("cores", local_ranks=4)[0]
    assert "8.0 GiB of it" in finding_about("memory", local_ranks=4)[0]


def test_a_memory_limit_is_shown_beside_the_machines_memory() -> None:
    found, advice = finding_about("memory", memory_limit_bytes=8 * GIB)
    assert "8.0 GiB of the machine's 128.0 GiB" in found
    assert "2.0 GiB of it" in found
    assert advice is None


def test_a_fitting_budget_is_suggested_when_memory_is_low() -> None:
    _, advice = finding_about("memory", free_bytes=4 * GIB)
    assert advice is not None
    assert f"memory_budget={GIB}" in advice


def test_unknown_memory_is_left_out() -> None:
    machine = dataclasses.replace(SOUND, memory_bytes=None, memory_limit_bytes=None, free_bytes=None)
    assert "memory" not in [finding.name for finding in find(machine)]


@pytest.mark.parametrize("size", [None, 64 << 20])
def test_small_shared_memory_only_affects_torchs_loader(size: int | None) -> None:
    found, advice = finding_about("shared memory", shared_bytes=size)
    assert "feedline does not use it; torch's own loader needs more" in found
    assert advice is None


def test_the_portable_engine_needs_shared_memory() -> None:
    _, advice = finding_about("shared memory", shared_bytes=64 << 20, shares_arenas=False)
    assert advice is not None
    assert "--shm-size" in advice
    assert finding_about("shared memory", shared_bytes=None, shares_arenas=False, system="Darwin 24")[1] is None


def test_a_low_limit_on_open_files_comes_with_a_better_number() -> None:
    _, advice = finding_about("open files", open_files=256)
    assert advice is not None
    assert "ulimit -n 65536" in advice
    assert "at most 24 workers" in advice
    assert "ulimit -n 4096" in str(finding_about("open files", open_files=256, open_files_most=4096)[1])


def test_raising_a_hard_limit_with_ulimit_is_not_advised() -> None:
    _, advice = finding_about("open files", open_files=256, open_files_most=256)
    assert advice is not None
    assert "`ulimit" not in advice
    assert "hard limit" in advice


def test_a_low_limit_on_processes() -> None:
    assert "ulimit -u" in str(finding_about("processes", processes=100)[1])
    assert finding_about("processes", processes=4000)[1] is None


def test_a_limit_on_file_sizes() -> None:
    assert finding_about("size of files") == ("No limit (ulimit -f).", None)
    found, advice = finding_about("size of files", file_bytes=8 * GIB)
    assert "8.0 GiB (ulimit -f)" in found
    assert "ulimit -f unlimited" in str(advice)


def test_a_limit_on_the_address_space() -> None:
    found, advice = finding_about("addresses", address_bytes=8 * GIB)
    assert "8.0 GiB" in found
    assert "ulimit -v unlimited" in str(advice)


@pytest.mark.parametrize(("system", "to_change"), [("Linux 4.4", True), ("Darwin 24", False)])
def test_a_system_without_shared_arenas(system: str, to_change: bool) -> None:
    found, advice = finding_about("process engine", shares_arenas=False, system=system)
    assert "portable" in found
    assert (advice is not None) is to_change


def test_start_methods() -> None:
    assert "nothing is pickled" in finding_about("start method")[0]
    assert "picklable" in finding_about("start method", start_method="forkserver")[0]


def test_upgrading_an_old_torch_is_advised() -> None:
    assert "2.4" in str(finding_about("torch", torch="2.3.1+cpu")[1])
    assert finding_about("torch", torch="2.4.0a0+git1234")[1] is None


def test_a_missing_torch_is_not_a_problem() -> None:
    found, advice = finding_about("torch", torch=None)
    assert "feedline.Loader works" in found
    assert advice is None


def test_a_torch_that_cannot_be_imported_is_a_problem() -> None:
    found, advice = finding_about("torch", torch=None, torch_trouble="OSError: libcudart.so.12")
    assert "libcudart" in found
    assert "pip install" in str(advice)


def test_a_missing_gpu_is_not_a_problem() -> None:
    assert finding_about("CUDA", cuda=None, devices=())[1] is None
    assert "H200" in finding_about("CUDA")[0]


def test_what_a_gpu_can_be_used_for() -> None:
    assert "No GPU" in finding_about("device", cuda=None, devices=())[0]
    found, advice = finding_about("device", decodes_jpegs=False)
    assert "Workers decode" in found
    assert "feedline[gpu]" in str(advice)
    for queues, is_advised in ((None, False), ("32", False), ("8", True), ("1", True)):
        found, advice = finding_about("device", cuda_queues=queues)
        assert "decodes JPEG files" in found
        assert (advice is not None) is is_advised
