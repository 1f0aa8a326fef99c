"""A cluster of several nodes on this machine whose actors and nodes are killed repeatedly, in the middle of epochs.

    python -m tests.ray_drill --actors 500 --nodes 20 --minutes 60

Every batch is compared, bit by bit, with the one that a loader without workers makes. The first that is missing, comes
twice, in another place or with other bytes ends the drill with an error. Nodes are killed as `kill -9` would: their
actors die, and so do the batches in their object stores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import Loader, RayOptions, rng
from feedline.errors import WorkerWarning
from feedline.loader.base import session_of

_STORE_BYTES = 100 << 20
_CPUS = 3


class Drawn:
    """Sample i is its number and 20,000 random ones, which depend on the key of the sample."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[int, NDArray[np.float64]]:
        time.sleep(0.005)  # a batch takes a while, so that actors are killed while they work
        return index, rng().random(20_000)


def loader_of(**options: Any) -> Any:
    return Loader(Drawn(), batch_size=4, shuffle=True, seed=7, restarts=10**6, **options)


class Nodes:
    """A head node, which has the training process and no actors, and nodes that come and go."""

    def __init__(self, count: int) -> None:
        import ray
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(self._cluster.address, log_to_driver=False)
        self._nodes = [self._add() for _ in range(count)]

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=_CPUS, object_store_memory=_STORE_BYTES, wait=True)

    def kill_one(self, chance: random.Random) -> None:
        """Kill a node, and start another one in its place."""
        place = chance.randrange(len(self._nodes))
        self._cluster.remove_node(self._nodes[place], allow_graceful=False)
        self._nodes[place] = self._add()

    def close(self) -> None:
        """Shut down the cluster."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def drill(nodes: Nodes, arguments: argparse.Namespace) -> dict[str, float]:
    """Run epochs until enough actors and nodes were killed, or the time is over."""
    chance = random.Random(arguments.seed)
    inline = loader_of()
    loader = loader_of(workers=4, engine=RayOptions(), persistent=True)
    found = {"actors": 0, "nodes": 0, "batches": 0, "epochs": 0}
    started_s = time.monotonic()
    left = set(range(arguments.nodes))
    killed: set[int] = set()
    while True:
        expected: Iterator[Any] = iter(inline)
        for batch in loader:
            for one, other in zip(batch, next(expected), strict=True):
                np.testing.assert_array_equal(one, other)
            found["batches"] += 1
            elapsed_s = time.monotonic() - started_s
            if elapsed_s > arguments.minutes * 60 or (found["actors"] >= arguments.actors and not left):
                return {**found, "restarts": loader.stats()["restarted_workers"], "seconds": round(elapsed_s)}
            if left and found["actors"] >= min(left) * arguments.actors / arguments.nodes:
                left.remove(min(left))
                nodes.kill_one(chance)
                found["nodes"] += 1
            # A process is listed until its death is noticed; killing it again would not kill another actor.
            pids = [pid for pid in session_of(loader).resources.worker_pids if pid not in killed]
            if pids and found["actors"] < arguments.actors and chance.random() < 0.5:
                with contextlib.suppress(ProcessLookupError):  # it died with its node
                    pid = chance.choice(pids)
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
                    found["actors"] += 1
        assert next(expected, None) is None, "the epoch ended too soon"
        found["epochs"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=500, help="actors to kill")
    parser.add_argument("--nodes", type=int, default=20, help="nodes to kill")
    parser.add_argument("--minutes", type=float, default=60, help="the most that it may take")
    parser.add_argument("--seed", type=int, default=0, help="which of them, and when")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", WorkerWarning)
    nodes = Nodes(2)
    try:
        found = drill(nodes, arguments)
    finally:
        nodes.close()
    sys.stdout.write(f"{found}: nothing was lost, repeated or reordered\n")


if __name__ == "__main__":
    main()
