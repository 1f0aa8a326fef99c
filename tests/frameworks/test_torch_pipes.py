"""Several threads walk through pipes at once: torch alone cannot do that."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from feedline.frameworks import torch_pipes

ROUNDS = 200


def pipe() -> IterDataPipe[Any]:
    made: IterDataPipe[Any] = IterableWrapper(list(range(12)), deepcopy=False)
    for _ in range(6):  # a walk takes a while
        made = made.shuffle()
    return made.sharding_filter()


@pytest.mark.slow
def test_threads_take_turns() -> None:
    failures: list[Exception] = []
    begin = threading.Barrier(4)

    def work() -> None:
        own = pipe()
        begin.wait()
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


def test_the_seed_decides_about_the_order() -> None:
    assert list(torch_pipes.seed_pipe(pipe(), 3)) == list(torch_pipes.seed_pipe(pipe(), 3))
    assert list(torch_pipes.seed_pipe(pipe(), 3)) != list(torch_pipes.seed_pipe(pipe(), 4))
