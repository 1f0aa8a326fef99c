"""A Ray cluster of three nodes on this machine, one of which is killed in the middle of an epoch.

    python examples/clusters/ray_three_nodes.py

It runs the commands that you would run on three machines, and then trains:

    ray start --head --num-cpus=0     # on the first machine: the training program, and no workers
    ray start --address=HEAD:PORT     # on each of the others

Shows: `engine=RayOptions(...)` spreads the loader's workers over the nodes. When a node dies, the loader starts its
workers on another node, makes the lost batches again, and delivers the epoch as if nothing had happened.

Look at: "killed node", "epoch 1 is complete, bit by bit", and "workers restarted". Ray reports the death of the node as
well: "Raylet is terminated".
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from feedline import DataLoader, RayOptions, rng
from feedline.errors import WorkerWarning

SAMPLES, BATCH, KILL_AFTER = 400, 4, 20
STORE_BYTES = 100 << 20
START_S = 120.0


class Noise:
    """Samples that take a while, as decoding does: a number, random values, and the node that made them."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, NDArray[np.float64], int]:
        """Return the sample."""
        time.sleep(0.01)
        return index, rng().random(1000), int(os.environ.get("NODE", "0"))


def free_port() -> int:
    """Return a port that no program uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Node:
    """What `ray start` starts. With --block, the processes of a node end together with that command."""

    def __init__(self, number: int, *options: str) -> None:
        self.said = ""
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]
        command += [f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
        environment = {**os.environ, "NODE": str(number)}  # which the workers of the node inherit
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Keep what the command says, for the case that the node does not start."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line.decode(errors="replace")

    def kill(self) -> None:
        """End it as a power failure would. `ray stop` would end every node of this machine."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it in an orderly way; it may have ended already."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[list[Node]]:
    """Start a head and `workers` nodes; yields the latter. Ends all of them."""
    folder = tempfile.mkdtemp(prefix="ray-")  # short: Ray's sockets lie in it
    address = f"127.0.0.1:{free_port()}"
    head = Node(
        0,
        "--head",
        "--num-cpus=0",
        "--node-ip-address=127.0.0.1",
        f"--port={address.partition(':')[2]}",
        f"--ray-client-server-port={free_port()}",
        "--include-dashboard=false",
        f"--temp-dir={folder}",
    )
    nodes: list[Node] = []
    try:
        join(address)
        options = (f"--address={address}", "--node-ip-address=127.0.0.1", "--num-cpus=2")
        for number in range(1, workers + 1):  # one after the other: each looks for free ports
            nodes.append(Node(number, *options))
            wait_for(number + 1, nodes[-1])
        yield nodes
    finally:
        ray.shutdown()
        for node in [*nodes, head]:
            node.stop()
        shutil.rmtree(folder, ignore_errors=True)


def join(address: str) -> None:
    """Join the cluster as soon as its head answers."""
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            ray.init(address, log_to_driver=False, _node_ip_address="127.0.0.1")
        except ConnectionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)
        else:
            return


def living() -> int:
    """Return how many nodes are alive."""
    return sum(node["Alive"] for node in ray.nodes())


def wait_for(count: int, newest: Node) -> None:
    """Wait until there are so many nodes."""
    deadline_s = time.monotonic() + START_S
    while living() < count:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{living()} of {count} nodes joined within {START_S:.0f} s:\n{newest.said}")
        time.sleep(0.2)


def main() -> None:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a token would be written to your home directory
    warnings.simplefilter("ignore", WorkerWarning)  # about the worker that dies with its node
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 7}
    inline = DataLoader(Noise(), **options)
    with cluster(2) as nodes:
        print(f"{living()} nodes", flush=True)
        engine = RayOptions(num_cpus=1, scheduling_strategy="SPREAD")
        loader = DataLoader(Noise(), num_workers=2, engine=engine, persistent_workers=True, restarts=100, **options)
        for epoch in range(2):
            seen, made = [], Counter[int]()
            for (numbers, values, places), (same_numbers, same_values, _) in zip(loader, inline, strict=True):
                assert (numbers == same_numbers).all()
                assert (values == same_values).all()
                seen += numbers.tolist()
                made[int(places[0])] += 1
                if epoch == 1 and len(seen) == KILL_AFTER * BATCH:
                    victim = int(places[0])
                    nodes[victim - 1].kill()
                    print(f"killed node {victim} after {KILL_AFTER} batches", flush=True)
            assert sorted(seen) == list(range(SAMPLES)), "each sample once"
            print(
                f"epoch {epoch} is complete, bit by bit: {len(seen)} samples; batches by node: {dict(made)}", flush=True
            )
        print(f"workers restarted: {loader.stats()['restarted_workers']}")
        loader.close()


if __name__ == "__main__":
    main()
