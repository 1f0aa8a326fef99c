"""Ranks started by real launchers: Open MPI, MPICH and SLURM, where they are installed.

apt-get install openmpi-bin mpich slurm-wlm
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

COUNT = 20
PROGRAM = f"""
import json, os, sys
from pathlib import Path
import feedline
from feedline.system.ranks import local_rank_count, rank_if_known

class Stream:
    def __iter__(self):
        return iter(range({COUNT}))

sampler = feedline.samplers.DistributedSampler(range({COUNT}), shuffle=False, tail="exact")
report = {{
    "rank": rank_if_known(),
    "local": local_rank_count(),
    "map": [int(number) for batch in feedline.Loader(range({COUNT}), 4, sampler=sampler) for number in batch],
    "stream": [int(number) for batch in feedline.Loader(Stream(), 4, shard="exact") for number in batch],
}}
Path(sys.argv[1], f"{{os.getpid()}}.json").write_text(json.dumps(report))
"""


def launched(launcher: list[str], folder: Path, environment: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Launch the program; return the reports of its processes, by rank."""
    program, reports = folder / "program.py", folder / "reports"
    program.write_text(PROGRAM)
    reports.mkdir()
    command = [*launcher, sys.executable, str(program), str(reports)]
    if "--wrap" in launcher:  # it takes the command as one argument
        place = launcher.index("--wrap") + 1
        command = [*launcher[:place], shlex.join(command[place:])]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI"))}
    done = subprocess.run(
        command,
        env={**variables, **(environment or {})},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted((json.loads(file.read_text()) for file in reports.iterdir()), key=lambda each: each["rank"] or [])


def check_shares(reports: list[dict[str, Any]]) -> None:
    """Check that two ranks together have every sample once."""
    assert [each["rank"] for each in reports] == [[0, 2], [1, 2]]
    assert [each["local"] for each in reports] == [2, 2]
    for kind in ("map", "stream"):
        assert [len(each[kind]) for each in reports] == [COUNT // 2] * 2
        assert sorted(reports[0][kind] + reports[1][kind]) == list(range(COUNT))


def check_whole(reports: list[dict[str, Any]], processes: int) -> None:
    """Check that these processes are not ranks: each has everything."""
    assert [each["rank"] for each in reports] == [None] * processes
    for each in reports:
        assert each["map"] == each["stream"] == list(range(COUNT))


def installed(name: str, package: str) -> str:
    """Return the path of a program; skip if there is none."""
    found = shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
    if found is None:
        pytest.skip(f"no {name} is installed: apt-get install {package}")
    return found


@pytest.mark.parametrize(
    ("name", "package", "options"),
    [
        ("mpirun.openmpi", "openmpi-bin", ["--allow-run-as-root", "--oversubscribe", "-n", "2"]),
        ("mpiexec.hydra", "mpich", ["-n", "2"]),
    ],
)
def test_processes_of_mpi_are_ranks(name: str, package: str, options: list[str], tmp_path: Path) -> None:
    check_shares(launched([installed(name, package), *options], tmp_path))


# -- SLURM ---

CONFIGURATION = """
ClusterName=throwaway
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthInfo=socket={folder}/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES
"""
"""One node, this machine, declared to have two cores."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """Start SLURM on this machine, with one node; yield the variables by which its commands find it."""
    programs = [installed(name, "slurm-wlm") for name in ("munged", "slurmctld", "slurmd")]
    if os.geteuid() != 0:
        pytest.skip("slurmd starts jobs as their users, which only root may do")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())  # sockets need short names
        sockets = [stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(2)]
        ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        key, configuration = Path(folder, "key"), Path(folder, "slurm.conf")
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        configuration.write_text(CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=ports))
        environment = {"SLURM_CONF": str(configuration)}
        files = [f"--{name}-file={folder}/{name}" for name in ("pid", "seed", "key")]
        stack.enter_context(
            started(
                [programs[0], "--foreground", "--force", f"--socket={folder}/munge", *files],
                "Created socket",
                environment,
            )
        )
        stack.enter_context(started([programs[1], "-D"], "Running as primary controller", environment))
        stack.enter_context(started([programs[2], "-D"], "slurmd started", environment))
        yield environment


@contextlib.contextmanager
def started(command: list[str], says: str, environment: dict[str, str]) -> Iterator[None]:
    """Start a server, and wait until it reports that it is ready; stop it at the end."""
    with subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            lines: list[str] = []
            for line in server.stderr:
                lines.append(line)
                if says in line:
                    break
            else:
                raise RuntimeError(f"{command[0]} did not start: {''.join(lines)}")
            yield
        finally:
            server.terminate()
            server.communicate(timeout=100)


@pytest.mark.parametrize(
    "launcher",
    [
        "srun -n 2",
        "srun -n 2 --mpi=pmi2",
        "salloc -n 2 srun",
        "sbatch --wait -n 2 --wrap srun",
        f"srun -n 1 -c 2 {sys.executable} -m torch.distributed.run --nproc-per-node 2 --no-python",
    ],
)
def test_tasks_of_a_slurm_step_are_ranks(launcher: str, cluster: dict[str, str], tmp_path: Path) -> None:
    check_shares(launched(launcher.split(), tmp_path, cluster))


@pytest.mark.parametrize(
    ("launcher", "processes"),
    [("salloc -n 2", 1), ("sbatch --wait -n 2 --wrap", 1), ("sbatch --wait --array=0-1 --wrap", 2)],
)
def test_processes_started_by_slurm_without_srun_are_not_ranks(
    launcher: str, processes: int, cluster: dict[str, str], tmp_path: Path
) -> None:
    check_whole(launched(launcher.split(), tmp_path, cluster), processes)


def test_mpirun_in_a_slurm_job(cluster: dict[str, str], tmp_path: Path) -> None:
    installed("mpirun.openmpi", "openmpi-bin")
    options = "salloc -n 2 mpirun.openmpi --allow-run-as-root --oversubscribe -n 2"
    check_shares(launched(options.split(), tmp_path, cluster))
