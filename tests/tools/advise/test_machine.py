from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from feedline.tools.advise.machine import find
from feedline.tools.measure.machine import Machine

GIB = 1 << 30
SOUND = Machine(
    system="Linux 6.1 x86_64", processor="Neoverse-N1", python="3.11.7", feedline="0.1.0", numpy="2.0.0",
    torch="2.13.0+cu126", torch_trouble=None, cuda="12.6", devices=("H200",), decodes_jpegs=True, cuda_queues=None,
    torch_threads=16, cores=16, machine_cores=16, cpu_quota=None, memory_bytes=128 * GIB,
    memory_limit_bytes=128 * GIB, free_bytes=100 * GIB, local_ranks=1, shared_bytes=64 * GIB, open_files=65536,
    open_files_most=None, processes=None, address_bytes=None, file_bytes=None, shares_arenas=True, start_method="fork",
)  # fmt: skip
PORTABLE = {"shares_arenas": False}


def test_a_sound_machine_needs_no_fix() -> None:
    assert [finding.name for finding in find(SOUND) if finding.fix is not None] == []


@pytest.mark.parametrize(
    ("details", "subject", "found", "fix"),
    [
        ({"cpu_quota": 2.5}, "cores", "2 cores of the machine's 16", None),
        ({"cores": 1}, "cores", "1 core", "num_workers=0"),
        ({"local_ranks": 4}, "cores", "shared by 4 ranks: up to 4 workers", None),
        ({"local_ranks": 4}, "memory", "8.0 GiB of it", None),
        ({"memory_limit_bytes": 8 * GIB}, "memory", "8.0 GiB of the machine's 128.0 GiB", None),
        ({"free_bytes": 4 * GIB}, "memory", "128.0 GiB", f"memory_budget={GIB}"),
        ({"shared_bytes": 64 << 20}, "shared memory", "does not use it; torch's own loader needs more", None),
        ({"shared_bytes": 64 << 20, **PORTABLE}, "shared memory", "portable", "--shm-size"),
        ({"shared_bytes": None, **PORTABLE, "system": "Darwin 24"}, "shared memory", "", None),
        ({"open_files": 256}, "open files", "256", "ulimit -n 65536` in the shell, or use at most 24 workers"),
        ({"open_files": 256, "open_files_most": 4096}, "open files", "256", "ulimit -n 4096"),
        ({"processes": 100}, "processes", "100", "ulimit -u"),
        ({"processes": 4000}, "processes", "4000", None),
        ({"address_bytes": 8 * GIB}, "addresses", "8.0 GiB", "ulimit -v unlimited"),
        ({"file_bytes": 8 * GIB}, "size of files", "8.0 GiB", "ulimit -f unlimited"),
        ({**PORTABLE, "system": "Linux 4.4"}, "process engine", "portable", "memfd_create"),
        ({}, "start method", "nothing is pickled", None),
        ({"start_method": "forkserver"}, "start method", "picklable", None),
        ({"torch": "2.3.1+cpu"}, "torch", "2.3.1", "2.4"),
        ({"torch": "2.4.0a0+git1234"}, "torch", "2.4.0", None),
        ({"torch": None, "torch_trouble": "OSError: libcudart.so.12"}, "torch", "libcudart", "pip install"),
        ({"cuda": None, "devices": ()}, "CUDA", "No device", None),
        ({}, "CUDA", "H200", None),
        ({"decodes_jpegs": False}, "device", "Workers decode", "feedline[gpu]"),
        ({"cuda_queues": "8"}, "device", "decodes JPEG files", "=32 instead of 8"),
    ],
)
def test_what_a_fact_means(details: dict[str, Any], subject: str, found: str, fix: str | None) -> None:
    (one,) = [finding for finding in find(dataclasses.replace(SOUND, **details)) if finding.name == subject]
    assert found in f"{one.problem} {one.evidence}"
    assert (one.fix is None) == (fix is None)
    assert (fix or "") in (one.fix or "")


def test_unknown_memory_is_left_out() -> None:
    machine = dataclasses.replace(SOUND, memory_bytes=None, memory_limit_bytes=None, free_bytes=None)
    assert "memory" not in [finding.name for finding in find(machine)]
