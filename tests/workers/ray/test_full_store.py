"""Full object stores: Ray spills to disk, or the loader reports that the disk is full."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

_PROGRAM = """
import sys, warnings
import numpy as np
import ray
from ray.cluster_utils import Cluster
from feedline import Loader
from feedline.errors import TransportError

disk, where = sys.argv[1:]
config = {
    "buffer": {},
    "full": {"local_fs_capacity_threshold": 0.0001},
}[disk]
sizes = {"object_store_memory": 80 << 20}
head = {**sizes, "num_cpus": 4 if where == "here" else 0, "include_dashboard": False, "_system_config": config}
cluster = Cluster(initialize_head=True, head_node_args=head)
if where == "elsewhere":
    cluster.add_node(num_cpus=4, **sizes)
ray.init(cluster.address, log_to_driver=False)


@ray.remote(num_cpus=1)
class Other:
    '''Another program, which uses most of the store where the workers are.'''

    def __init__(self):
        self.held = ray.get(ray.put(np.ones(70 << 20, np.uint8)))

    def is_there(self):
        return True


other = Other.remote()
ray.get(other.is_there.remote())


class Wide:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return np.full(5 << 20, float(index), np.float32)  # 20 MB


warnings.showwarning = lambda message, category, *_: print(category.__name__, message)
warnings.simplefilter("always")
try:
    kept = list(Loader(Wide(), batch_size=1, workers=3, prefetch=3, engine="ray"))
    assert [(batch.min(), batch.max()) for batch in kept] == [(i, i) for i in range(12)]
    print("through")
except TransportError as exc:
    print("TransportError", exc)
ray.shutdown()
cluster.shutdown()
"""


def output_lines(disk: str, where: str) -> list[str]:
    """Keep all batches of a loader, none of which fits into the object store; return the lines it printed."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, disk, where],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_batches_that_do_not_fit_are_spilled_to_disk() -> None:
    assert output_lines("buffer", "elsewhere")[-1] == "through"


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_full_disk_raises_at_once_and_restarts_no_worker(where: str) -> None:
    lines = output_lines("full", where)
    assert lines[-1].startswith("TransportError"), lines
    assert "is full, and so is the disk that Ray spills to (OutOfDiskError)" in lines[-1]
    assert not [line for line in lines if "has taken its place" in line]
