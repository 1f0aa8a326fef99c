"""Finding out the rank of this process."""

from __future__ import annotations

import os
import sys
import warnings
from types import SimpleNamespace

import pytest

from feedline.errors import BadOption, DataWarning
from feedline.system import ranks
from feedline.system.ranks import Share, local_rank_count, own_share, rank_if_known, share_if_known

distributed = pytest.importorskip("torch.distributed")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.endswith(("RANK", "WORLD_SIZE")) or name.startswith(("SLURM_", "OMPI_", "PMI", "MPI_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(ranks, "_reported", set())


def put(monkeypatch: pytest.MonkeyPatch, variables: str) -> None:
    """Set environment variables written as in a shell."""
    for pair in variables.split():
        monkeypatch.setenv(*pair.split("=", 1))


def join_group(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(distributed, "get_world_size", lambda: world_size)


def test_the_rank_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert own_share(None, None, "drop") == Share(2, 4, "drop")
    assert own_share(1, None, "drop") == Share(1, 4, "drop")
    assert own_share(1, 3, "drop") == Share(1, 3, "drop")


def test_a_process_group_has_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    join_group(monkeypatch, 5, 8)
    assert own_share(None, None, "pad") == Share(5, 8, "pad")


class Jax:
    """The part of JAX that is used. `tests/frameworks_real/test_jax.py` tests the real one."""

    def __init__(self, *, initialized: bool) -> None:
        self.distributed = SimpleNamespace(is_initialized=lambda: initialized)

    def process_index(self) -> int:
        raise AssertionError("it would start the devices")


def test_jax_processes_are_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(global_state=SimpleNamespace(process_id=1, num_processes=3))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "jax._src.distributed", state)
    monkeypatch.setitem(sys.modules, "jax", Jax(initialized=False))
    assert own_share(None, None, "pad") == Share(0, 2, "pad")
    monkeypatch.setitem(sys.modules, "jax", Jax(initialized=True))
    assert own_share(None, None, "pad") == Share(1, 3, "pad")
    assert rank_if_known() == (1, 3)
    join_group(monkeypatch, 5, 8)
    assert own_share(None, None, "pad") == Share(5, 8, "pad"), "torch's group has precedence"


TORCHRUN = "RANK=2 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4"
OPEN_MPI = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=6 OMPI_COMM_WORLD_LOCAL_SIZE=3 PMIX_RANK=3"
MPICH = "PMI_RANK=1 PMI_SIZE=5 MPI_LOCALNRANKS=5"
SRUN = "SLURM_PROCID=9 SLURM_NTASKS=11 SLURM_STEP_NUM_TASKS=11 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=4(x2),3"


@pytest.mark.parametrize(
    ("variables", "rank", "local"),
    [
        (TORCHRUN, (2, 8), 4),
        (OPEN_MPI, (3, 6), 3),
        (MPICH, (1, 5), 5),
        (f"{SRUN} SLURM_NODEID=1", (9, 11), 4),
        (f"{SRUN} SLURM_NODEID=2 PMIX_RANK=9", (9, 11), 3),
        (f"{SRUN} SLURM_NODEID=3", (9, 11), 1),  # inconsistent: this node is unknown
        ("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=all", (1, 2), 1),
        (f"{SRUN} {MPICH} {OPEN_MPI} {TORCHRUN}", (2, 8), 4),  # srun starts mpirun, which starts torchrun
        (f"{SRUN} {MPICH} {OPEN_MPI}", (3, 6), 3),
        (f"{SRUN} {MPICH}", (1, 5), 5),
        (f"{SRUN} WORLD_SIZE=11", (9, 11), 4),  # exported by job scripts, besides srun's variables
        (f"{SRUN} SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=7", (9, 11), 4),
    ],
)
def test_ranks_of_launchers_are_recognised(
    variables: str, rank: tuple[int, int], local: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, variables)
    assert rank_if_known() == rank
    assert own_share(None, None, "pad") == Share(*rank, "pad")
    assert local_rank_count() == local


@pytest.mark.parametrize(
    "variables",
    [
        "SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=4",  # a batch script
        "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_JOB_NUM_NODES=2",  # salloc on the login node
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=4294967290",  # salloc on a compute node
        "SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=8 SLURM_PROCID=0 SLURM_NTASKS=1",
        "PMI_FD=5 PMIX_NAMESPACE=slurm.pmix.7.0",
        "OMPI_COMM_WORLD_SIZE=4",
        "WORLD_SIZE=1",
    ],
)
def test_variables_that_do_not_make_a_rank(variables: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, variables)
    assert rank_if_known() is None
    assert own_share(None, None, "pad") == Share(0, 1, "pad")
    assert local_rank_count() == 1


@pytest.mark.parametrize(
    ("variables", "match"),
    [
        ("PMIX_RANK=3", "PMIX_RANK='3'.*the number of ranks is not set"),
        (f"{SRUN} WORLD_SIZE=8", "WORLD_SIZE=8 but no RANK.*SLURM_STEP_NUM_TASKS='11' differs"),
        ("RANK=two WORLD_SIZE=4", "RANK='two'"),
        ("RANK=4 WORLD_SIZE=4", "RANK=4 and WORLD_SIZE=4"),
        ("RANK=-1 WORLD_SIZE=4", "RANK=-1"),
        ("RANK=0 WORLD_SIZE=0", "WORLD_SIZE=0"),
        ("RANK=2", "both are needed"),
        ("WORLD_SIZE=2", "both are needed"),
        ("OMPI_COMM_WORLD_RANK=6 OMPI_COMM_WORLD_SIZE=6", "OMPI_COMM_WORLD_RANK=6"),
        ("PMI_RANK=a PMI_SIZE=6", "PMI_RANK='a' is not an integer"),
    ],
)
def test_rejects_inconsistent_variables_of_launchers(
    variables: str, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, variables)
    with pytest.raises(BadOption, match=match):
        own_share(None, None, "pad")
    with pytest.raises(BadOption):
        rank_if_known()
    assert share_if_known() == Share(), "ranks are optional here"


def test_warns_once_about_a_group_with_fewer_ranks_than_were_started(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, "RANK=3 WORLD_SIZE=4")
    join_group(monkeypatch, 1, 2)
    with pytest.warns(
        DataWarning, match=r"4 ranks were started \(WORLD_SIZE=4\), and torch.distributed has a group of 2"
    ):
        assert own_share(None, None, "pad") == Share(1, 2, "pad")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rank_if_known() == (1, 2)


@pytest.mark.parametrize("variables", [SRUN, OPEN_MPI, "PMIX_RANK=3", "RANK=3", "RANK=0 WORLD_SIZE=16"])
def test_a_group_with_at_least_as_many_ranks_as_started_causes_no_warning(
    variables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, variables)
    join_group(monkeypatch, 5, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rank_if_known() == (5, 16)
