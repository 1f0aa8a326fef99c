"""One of several JAX processes: reports its rank, its samples, and the arrays that all processes make together."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import chain
from typing import Any

import jax
import numpy as np

import feedline
from feedline.samplers import DistributedSampler
from feedline.system.ranks import rank_if_known

SIZE = 24


class Stream:
    def __iter__(self) -> Iterator[Any]:
        return (np.int64(number) for number in range(SIZE))


def samples(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch]


def main() -> None:
    rank, count, port = (int(os.environ.pop(name)) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    alone = rank_if_known()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, rank)
    numbers = np.arange(SIZE)
    answers: dict[str, Any] = {
        "alone": alone,
        "rank": rank_if_known(),
        "sampler": samples(feedline.Loader(numbers, 2, sampler=DistributedSampler(numbers), seed=1)),
        "stream": samples(feedline.Loader(Stream(), 2)),
        "threads": samples(feedline.Loader(Stream(), 2, workers=2, engine="thread")),
        "forkserver": samples(feedline.Loader(Stream(), 2, workers=1, start_method="forkserver")),
    }
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "data")
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    total = jax.jit(
        lambda batch: batch.sum(), out_shardings=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    )
    loader = feedline.Loader(numbers, 4, sampler=DistributedSampler(numbers), seed=1)
    local = [batch.copy() for batch in loader]
    whole = [jax.make_array_from_process_local_data(rows, batch) for batch in local]
    parts = [[shard.data.tolist() for shard in batch.addressable_shards] for batch in whole]
    answers["devices"] = [jax.local_device_count(), jax.device_count()]
    answers["shards are own"] = [list(chain(*part)) for part in parts] == [batch.tolist() for batch in local]
    answers["shapes"] = [batch.shape[0] for batch in whole]
    answers["sums"] = [int(total(batch)) for batch in whole]
    answers["jax"] = [jax.process_index(), jax.process_count()]
    print(json.dumps(answers))  # noqa: T201
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
