"""Several threads traverse pipes at once, which torch alone does not support."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from feedline.frameworks import torch as torch_pipes

ROUNDS = 200


def pipe() -> IterDataPipe[Any]:
    made: IterDataPipe[Any] = IterableWrapper(list(range(12)), deepcopy=False)
    for _ in range(6):  # makes the traversal slow
        made = made.shuffle()
    return made.sharding_filter()


@pytest.mark.slow
def test_threads_traverse_pipes_one_at_a_time() -> None:
    failures: list[Exception] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        own = pipe()
        barrier.wait()
        try:
            for _ in range(ROUNDS):
                torch_pipes.seed_pipe(own, 3)
                torch_pipes.shard_pipe(own, 2, 1)
        except Exception as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_seed_determines_the_order() -> None:
    assert list(torch_pipes.seed_pipe(pipe(), 3)) == list(torch_pipes.seed_pipe(pipe(), 3))
    assert list(torch_pipes.seed_pipe(pipe(), 3)) != list(torch_pipes.seed_pipe(pipe(), 4))
