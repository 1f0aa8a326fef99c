"""`get_worker_info()` in processes and in threads."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils.data import get_worker_info  # a reference from before feedline changed anything

from feedline.frameworks.torch import reset_worker_info_read, set_thread_worker, worker_info, worker_info_was_read
from feedline.types import WorkerIdentity


def test_each_worker_thread_has_its_own_info_and_other_threads_have_none() -> None:
    answers: dict[int, Any] = {}
    barrier = threading.Barrier(3)

    def work(number: int) -> None:
        set_thread_worker(worker_info(WorkerIdentity(number, 3, 50 + number, "data", threaded=True), "data"))
        barrier.wait()
        answers[number] = get_worker_info()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: (info.id, info.seed) for number, info in answers.items()} == {0: (0, 50), 1: (1, 51), 2: (2, 52)}
    assert get_worker_info() is None
    assert torch.utils.data.get_worker_info is get_worker_info


def test_reading_the_worker_info_is_recorded() -> None:
    set_thread_worker(None)
    reset_worker_info_read()
    assert not worker_info_was_read()
    get_worker_info()
    assert worker_info_was_read()
    reset_worker_info_read()
    assert not worker_info_was_read()
