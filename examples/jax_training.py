"""Train with JAX on several hosts: each process loads its own rows, and every step sees one array of all of them.

    python examples/jax_training.py                                              # one process
    torchrun --nproc-per-node 2 examples/jax_training.py --launched              # or any launcher that sets RANK

On TPUs and under SLURM, `jax.distributed.initialize()` finds the other processes without arguments. To try it without
accelerators, `XLA_FLAGS=--xla_force_host_platform_device_count=2` gives each process two devices of its CPU.

Shows: `feedline.Loader` and `DistributedSampler` without torch, and one global array made of the rows that each process
has loaded.

Look at: the rows that each process has loaded, and the loss, which is the same on all of them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import jax
import numpy as np

import feedline
from feedline.samplers import DistributedSampler

ROWS, FEATURES, OWN_BATCH = 256, 8, 16


def train(epochs: int = 2) -> tuple[float, list[int]]:
    """Return the last loss, which is the same on every process, and the rows that this process has loaded."""
    # The recipe: a mesh over all devices of all processes, a sampler that shares out the rows over the processes, and
    # one global array of what each of them has loaded.
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    data = dataset()
    sampler = DistributedSampler(data["number"], shuffle=True, seed=0, drop_last=True)
    loader = feedline.Loader(data, OWN_BATCH, sampler=sampler, drop_last=True, workers=2, engine="thread")

    step = jax.jit(_step, out_shardings=(everywhere, everywhere))
    weights, loss, seen = jax.device_put(np.zeros(FEATURES, np.float32), everywhere), 0.0, []
    for _ in range(epochs):
        for own in loader:
            batch = {name: jax.make_array_from_process_local_data(rows, values) for name, values in own.items()}
            weights, loss = step(weights, batch)
            seen += own["number"].tolist()
    loader.close()
    return float(loss), seen


def dataset() -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of a linear problem."""
    x = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
    return {"x": x, "y": x.sum(1), "number": np.arange(ROWS, dtype=np.int32)}


# Any: arrays of JAX, and structures of them.
def _step(weights: Any, batch: Any) -> tuple[Any, Any]:
    def loss_of(weights: Any) -> Any:
        return ((batch["x"] @ weights - batch["y"]) ** 2).mean()

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 0.1 * gradient, loss


def main() -> None:
    if "--launched" in sys.argv:
        told = os.environ
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = f"{told['MASTER_ADDR']}:{told['MASTER_PORT']}"
        jax.distributed.initialize(address, int(told["WORLD_SIZE"]), int(told["RANK"]))
    loss, seen = train()
    print(f"process {jax.process_index()} of {jax.process_count()}, {jax.device_count()} devices:", end=" ")
    print(f"{len(seen)} rows, loss {loss:.6f}")


if __name__ == "__main__":
    main()
