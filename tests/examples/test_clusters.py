"""The files in examples/clusters: the script stops and resumes, launchers run it, and the metrics exist."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any  # Any: values of YAML and JSON

import pytest
import yaml

from feedline import DataLoader
from feedline.samplers import DistributedSampler

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "clusters"
SCRIPT = FOLDER / "train.py"
PAGE = ROOT / "docs" / "guide" / "clusters.md"
RANKS, SAMPLES, BATCH = 2, 4000, 4
START_AGAIN = 75

# A pipe of this size holds less than half of an epoch's lines, so that a rank cannot finish while its log is not read.
PIPE_BYTES = 4096
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1",
}


@functools.cache
def manifest() -> dict[str, Any]:
    """Return the objects of kubernetes.yaml, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())}


def pod() -> dict[str, Any]:
    found: dict[str, Any] = manifest()["Job"]["spec"]["template"]["spec"]
    return found


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


def expected(rank: int) -> list[int]:
    """Return the samples of a rank in order, from an undisturbed loader."""
    sampler = DistributedSampler(range(SAMPLES), RANKS, rank, seed=0)
    return [index for batch in DataLoader(range(SAMPLES), BATCH, sampler=sampler, seed=0) for index in batch.tolist()]


def samples_in(lines: list[str]) -> list[int]:
    """Return the numbers of the samples in a log, without the epochs."""
    return [int(word) for line in lines for word in line.split()[1:]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Log:
    """The log of a rank as a named pipe: the rank continues only as far as the test reads."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        self.lines: list[str] = []

    @contextlib.contextmanager
    def opened(self, rank: subprocess.Popen[str]) -> Iterator[IO[str]]:
        """Wait for the first lines of the program that writes it."""
        file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for a writer
        fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        while not select.select([file], [], [], 1)[0]:
            assert rank.poll() is None, rank.communicate()
        os.set_blocking(file, True)
        with os.fdopen(file) as opened:
            yield opened

    def read(self, file: IO[str], count: int) -> None:
        self.lines += [file.readline() for _ in range(count)]


def wait_for_message(errors: IO[str], text: str) -> None:
    """Read a program's errors until they contain a text."""
    text_so_far = ""
    while text not in text_so_far:
        line = errors.readline()
        assert line, text_so_far
        text_so_far += line


# -- Kubernetes ---


def start_pod(rank: int, port: int, folder: Path, log: Path) -> subprocess.Popen[str]:
    """Start a rank as its pod would: with the variables and arguments of the manifest, on this machine."""
    named = {one["name"]: one.get("value") for one in container()["env"]}
    assert named.keys() >= {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    variables = {name: value for name, value in named.items() if value is not None}
    here = {"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    places = {"/checkpoints": str(folder), "/tmp": str(log), "9400": str(free_port()), "auto": "1"}
    arguments = [places.get(word, word) for word in container()["args"]]
    program, *options = container()["command"]
    assert program == "python"
    command = [sys.executable, *(str(SCRIPT) if word == "/app/train.py" else word for word in options), *arguments]
    size = ["--samples", str(SAMPLES), "--batch-size", str(BATCH), "--epochs", "1"]
    environment = {**ENVIRONMENT, **variables, **here}
    return subprocess.Popen([*command, *size], env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_pods_of_the_manifest_stop_on_sigterm_and_resume_exactly(tmp_path: Path) -> None:
    logs = [tmp_path / "first", tmp_path / "second"]
    for folder in logs:
        folder.mkdir()
    log = Log(logs[0] / "rank-1.txt")
    port = free_port()
    ranks = [start_pod(rank, port, tmp_path, logs[0]) for rank in range(RANKS)]
    with log.opened(ranks[1]) as file:
        log.read(file, 5)
        ranks[1].send_signal(signal.SIGTERM)  # one pod is evicted, and the other one does not know
        assert ranks[1].stderr is not None
        wait_for_message(ranks[1].stderr, "SIGTERM")
        log.lines += file.readlines()
    errors = [rank.communicate(timeout=250)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [START_AGAIN] * RANKS, errors
    assert (tmp_path / "stopped").exists()
    steps = len(log.lines)
    assert 5 <= steps < SAMPLES // RANKS // BATCH

    port = free_port()
    ranks = [start_pod(rank, port, tmp_path, logs[1]) for rank in range(RANKS)]
    errors = [rank.communicate(timeout=250)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, errors
    assert not (tmp_path / "stopped").exists()
    firsts = [(logs[0] / "rank-0.txt").read_text().splitlines(), log.lines]
    for rank, first in enumerate(firsts):
        assert len(first) == steps, "all ranks stop after the same step"
        second = (logs[1] / f"rank-{rank}.txt").read_text().splitlines()
        assert samples_in([*first, *second]) == expected(rank)


def test_the_manifest_gives_each_pod_its_rank_and_a_name() -> None:
    job, service = manifest()["Job"], manifest()["Service"]
    assert job["apiVersion"] == "batch/v1"
    spec = job["spec"]
    variables = {one["name"]: one for one in container()["env"]}
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(variables["WORLD_SIZE"]["value"])
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert variables["RANK"]["valueFrom"]["fieldRef"]["fieldPath"] == index
    name = service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod()["subdomain"] == name
    assert variables["MASTER_ADDR"]["value"] == f"{job['metadata']['name']}-0.{name}"
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert ports == {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert int(variables["MASTER_PORT"]["value"]) == ports["rendezvous"]
    assert all(isinstance(one.get("value", ""), str) for one in container()["env"]), "Kubernetes rejects numbers"


def test_the_manifest_has_limits_and_no_shared_memory_volume() -> None:
    resources = container()["resources"]
    assert {"cpu", "memory"} <= resources["requests"].keys()
    assert resources["limits"]["cpu"] == resources["requests"]["cpu"], '"auto" counts these'
    assert resources["limits"]["memory"] == resources["requests"]["memory"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert "/dev/shm" not in mounts.values()
    assert mounts.keys() == {volume["name"] for volume in pod()["volumes"]}
    assert not any("emptyDir" in volume for volume in pod()["volumes"])
    claims = [volume["persistentVolumeClaim"] for volume in pod()["volumes"] if "persistentVolumeClaim" in volume]
    assert [claim["claimName"] for claim in claims] == [manifest()["PersistentVolumeClaim"]["metadata"]["name"]]
    words = container()["args"]
    assert words[words.index("--folder") + 1] in mounts.values()


def test_a_pod_that_was_asked_to_stop_does_not_count_as_a_failure() -> None:
    spec = manifest()["Job"]["spec"]
    rules = spec["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "Ignore"]
    assert {"type": "DisruptionTarget"} in rules[0]["onPodConditions"]
    codes = rules[1]["onExitCodes"]
    assert codes == {"containerName": container()["name"], "operator": "In", "values": [train_module().START_AGAIN]}
    assert pod()["restartPolicy"] == "Never", "podFailurePolicy needs it"


# -- SLURM ---

FAKES = {
    # Runs the command as the job's only node and records the process of the step, as SLURM signals all its processes.
    "srun": """
echo $$ > "$FAKE_FOLDER/step.pid"
exec "$@"
""",
    "torchrun": 'exec "$FAKE_PYTHON" -m torch.distributed.run "$@"\n',
    "scontrol": """
echo "$@" >> "$FAKE_FOLDER/scontrol.log"
[[ $1 == show ]] && echo 127.0.0.1
exit 0
""",
}


def start_job(folder: Path, log: Path, *options: str) -> subprocess.Popen[str]:
    """Run slurm.sbatch with fake SLURM commands and the real torchrun."""
    fakes = folder / "bin"
    fakes.mkdir(exist_ok=True)
    for name, text in FAKES.items():
        (fakes / name).write_text(f"#!/bin/bash\n{text.lstrip()}")
        (fakes / name).chmod(0o755)
    job = {
        "SLURM_JOB_ID": "42",
        "SLURM_JOB_NODELIST": "node[1-1]",
        "SLURM_JOB_NUM_NODES": "1",
        "RANKS_PER_NODE": str(RANKS),
        "RENDEZVOUS_PORT": str(free_port()),
        "FOLDER": str(folder / "run"),
        "TRAIN": str(SCRIPT),
        "FAKE_FOLDER": str(folder),
        "FAKE_PYTHON": sys.executable,
        "PATH": f"{fakes}{os.pathsep}{os.environ['PATH']}",
    }
    size = ["--samples", str(SAMPLES), "--batch-size", str(BATCH), "--epochs", "1", "--workers", "1"]
    return subprocess.Popen(
        ["bash", str(FOLDER / "slurm.sbatch"), *size, "--seen", str(log), *options],
        env={**ENVIRONMENT, **job},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def descendants(pid: int) -> list[int]:
    """List a process and everything below it."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += descendants(int(child))
    return found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for bash")
def test_a_signalled_slurm_job_is_requeued_and_resumes_exactly(tmp_path: Path) -> None:
    logs = [tmp_path / "first", tmp_path / "second"]
    for folder in logs:
        folder.mkdir()
    log = Log(logs[0] / "rank-1.txt")
    job = start_job(tmp_path, logs[0])
    with log.opened(job) as file:
        log.read(file, 5)
        step = int((tmp_path / "step.pid").read_text())
        for pid in descendants(step):  # as --signal=TERM@120 does: torchrun, the ranks, and the loaders' workers
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert job.stderr is not None
        wait_for_message(job.stderr, "SIGTERM")
        log.lines += file.readlines()
    output, errors = job.communicate(timeout=250)
    assert job.returncode == 0, output + errors
    assert "requeue 42" in (tmp_path / "scontrol.log").read_text().splitlines(), output + errors
    steps = len(log.lines)
    assert 5 <= steps < SAMPLES // RANKS // BATCH

    (tmp_path / "scontrol.log").unlink()
    job = start_job(tmp_path, logs[1])
    output, errors = job.communicate(timeout=250)
    assert job.returncode == 0, output + errors
    assert f"continues after step {steps}" in output
    assert "requeue" not in (tmp_path / "scontrol.log").read_text()
    firsts = [(logs[0] / "rank-0.txt").read_text().splitlines(), log.lines]
    for rank, first in enumerate(firsts):
        second = (logs[1] / f"rank-{rank}.txt").read_text().splitlines()
        assert samples_in([*first, *second]) == expected(rank)


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for bash")
def test_the_slurm_script_is_valid_and_requests_a_signal_and_a_requeue() -> None:
    file = FOLDER / "slurm.sbatch"
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    asked = re.findall(r"^#SBATCH (--\S+)", file.read_text(), re.MULTILINE)
    assert {"--requeue", "--signal=TERM@120", "--ntasks-per-node=1"} <= set(asked)
    lines = file.read_text().splitlines()
    first_command = next(place for place, line in enumerate(lines) if line and not line.startswith("#"))
    late = [line for line in lines[first_command:] if line.startswith("#SBATCH")]
    assert late == [], "sbatch reads no options after the first command"


# -- Metrics ---


def train_module() -> Any:
    spec = importlib.util.spec_from_file_location("clusters_train", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_explains_metrics_that_a_loader_has() -> None:
    loader = DataLoader(range(64), 2, num_workers=1)
    batches = iter(loader)
    next(batches)
    health = train_module().Health(stuck_after_s=1e9)
    health.update(loader.stats())  # its worker is alive
    loader.close()
    names = health.text.split()[::2]
    explained = re.findall(r"^\| `(feedline_\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert explained
    assert [start for start in explained if not any(name.startswith(start) for name in names)] == []


def test_the_script_serves_metrics_and_says_when_it_is_stuck() -> None:
    health = train_module().Health(stuck_after_s=1e9)
    assert health.answer("/healthz")[0] == 200, "ranks may wait for each other before the first step"
    loader = DataLoader(range(8), 2)
    loader.on_stats(health.update, every_s=0)
    assert len(list(loader)) == 4
    status, text = health.answer("/metrics")
    assert (status, "feedline_total_batches 4" in text) == (200, True)
    health.stepped_s = 0.0
    health.stuck_after_s = 0.0
    assert health.answer("/healthz")[0] == 503
    assert health.answer("/")[0] == 404
