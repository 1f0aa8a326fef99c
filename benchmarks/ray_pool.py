"""Question: how do training programs share the actors of a pool (`RayOptions(pool="name")`)?

Knob: how many programs there are, how long each trains on a batch, and one that is killed with `kill -9`.

Held still: two actors, a batch that takes 20 ms to make (it sleeps instead of computing, so that other load matters
little), a local cluster. Each program is its own process.

How to read it: batches per second of each program over `--seconds`, and its share of the total. Programs that always
want more should have equal shares. A program that trains for 200 ms on each batch can use 5 per second; the others
should get the rest. When a program is killed, the remaining ones together should get as many batches as all did before.

    python -m benchmarks.ray_pool
    python -m benchmarks.ray_pool --seconds 20
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import Loader, RayOptions

_WORK_S = 0.02
_SLOW_S = 0.2
_ACTORS = 2


class Slept:
    """Samples that take a while and no core."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        time.sleep(_WORK_S)
        return np.zeros(1000, np.float32)


def train(address: str, pool: str, file: str, step_s: float) -> None:
    """Go through batches for ever; a byte of the file for each."""
    import ray

    ray.init(address=address, log_to_driver=False)
    with open(file, "wb", buffering=0) as counted:
        for _ in Loader(Slept(), batch_size=1, workers=_ACTORS, engine=RayOptions(pool=pool)):
            counted.write(b".")
            time.sleep(step_s)


def rates(files: list[Path], seconds: float) -> list[float]:
    """Return how many batches per second each program gets, once all have begun."""
    while not all(file.exists() and file.stat().st_size > 10 for file in files):
        time.sleep(0.1)
    before, begun_s = [file.stat().st_size for file in files], time.monotonic()
    time.sleep(seconds)
    after, elapsed_s = [file.stat().st_size for file in files], time.monotonic() - begun_s
    return [(two - one) / elapsed_s for one, two in zip(before, after, strict=True)]


def measure(address: str, folder: Path, steps_s: list[float], seconds: float) -> dict[str, list[float]]:
    """Start a program for each step, and look at what each gets; then kill the last one of three, and look again."""
    name = "-".join(f"{step_s:g}" for step_s in steps_s)
    files = [folder / f"{name}.{number}" for number in range(len(steps_s))]
    command = [sys.executable, "-m", "benchmarks.ray_pool", "--train", address, name]
    programs = [
        subprocess.Popen([*command, str(file), str(step_s)]) for file, step_s in zip(files, steps_s, strict=True)
    ]
    try:
        found = {f"{len(files)} programs that train for {name} s": rates(files, seconds)}
        if len(files) > 2:
            programs[-1].kill()
            found["the same, one of them killed"] = rates(files[:-1], seconds)
    finally:
        for program in programs:
            program.kill()
            program.wait()
    return found


def main(argv: list[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="how long each case is looked at")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.train:
        address, pool, file, step_s = arguments.train
        train(address, pool, file, float(step_s))
    import ray

    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 100 << 20}
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        address = ray.init(address="local", num_cpus=3 * _ACTORS, **options).address_info["gcs_address"]
        for steps_s in ([0.0, 0.0, 0.0], [0.0, 0.0], [_SLOW_S, 0.0]):
            found |= measure(address, Path(folder), steps_s, arguments.seconds)
        ray.shutdown()
    for case, each in found.items():
        parts = ", ".join(f"{rate:.1f}/s ({rate / sum(each):.0%})" for rate in each)
        print(f"{case}: {parts}; together {sum(each):.1f}/s")
    return found


if __name__ == "__main__":
    main()
