"""Real ranks: processes of a script that report in one line of JSON what they saw."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import program_server

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(script: Path, count: int, *arguments: str, folder: Path, forked: bool = False) -> list[Any]:
    """Run a script once per rank, and return the JSON in the last line of each one's output."""
    return [
        json.loads(text.splitlines()[-1])
        for text in outputs_of(script, count, *arguments, folder=folder, forked=forked)
    ]


def outputs_of(
    script: Path, count: int, *arguments: str, folder: Path, forked: bool = False, timeout_s: float = 110
) -> list[str]:
    """Run a script once per rank, as torchrun would, and return what each one printed.

    Args:
        script: what to run.
        count: number of ranks.
        arguments: for the script.
        folder: where output goes; also the working directory.
        forked: whether each rank is forked from a process that has imported torch, which saves two seconds of a core.
        timeout_s: after which all are killed.
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    processes: list[subprocess.Popen[bytes] | program_server.Forked] = []
    outputs = []
    for rank in range(count):
        out, err = folder / f"rank{rank}.out", folder / f"rank{rank}.err"
        with out.open("w") as stdout, err.open("w") as stderr, open(os.devnull) as nothing:
            env = {**os.environ, **environment(rank, count, port)}
            processes.append(
                program_server.start(
                    script,
                    arguments,
                    cwd=folder,
                    env=env,
                    stdin=nothing.fileno(),
                    stdout=stdout.fileno(),
                    stderr=stderr.fileno(),
                )
                if forked
                else subprocess.Popen(
                    [sys.executable, str(script), *arguments], cwd=folder, env=env, stdout=stdout, stderr=stderr
                )
            )
        outputs.append((out, err))
    try:
        codes = [process.wait(timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0] * count, "\n".join(f"rank {rank}:\n{err.read_text()}" for rank, (_, err) in enumerate(outputs))
    return [out.read_text() for out, _ in outputs]


def environment(rank: int, count: int, port: int) -> dict[str, str]:
    """Return the variables that launchers set for a rank, and the path of feedline."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
