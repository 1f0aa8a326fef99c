"""Counters that lose nothing."""

import os
import threading

import pytest

from feedline.datasets.cache.counts import BYTES, Counts
from feedline.datasets.cache.ground import MemoryGround


def test_processes_and_threads_add_up() -> None:
    counts = Counts(MemoryGround(BYTES))
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            for _ in range(500):
                counts.add("misses")
            os._exit(0)
        children.append(pid)

    def add() -> None:
        for _ in range(500):
            counts.add("damaged")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pid in children:
        os.waitpid(pid, 0)
    counts.add("memory_hits", 7)
    assert counts.totals() == {"memory_hits": 7, "disk_hits": 0, "misses": 2000, "damaged": 2000, "random": 0}


@pytest.mark.slow
def test_there_may_be_more_processes_one_after_the_other_than_rows() -> None:
    counts = Counts(MemoryGround(BYTES))
    for _ in range(300):
        pid = os.fork()
        if pid == 0:
            counts.add("misses")
            os._exit(0)
        os.waitpid(pid, 0)
    assert counts.totals()["misses"] == 300
