"""The memory in which a batch travels to the training process."""

from __future__ import annotations

import errno
import os
import threading
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest

from feedline.memory.codec import SlotWriter
from feedline.workers.portable import segments
from feedline.workers.portable.segments import BatchBytes, Inbox, Outbox, not_while_forking

NAME = f"feedline_test_{os.getpid()}"


def fill(writer: SlotWriter, size: int) -> None:
    writer.view[writer.place(size) :][:size] = np.arange(size) % 251


def send(size: int) -> tuple[BatchBytes, Any]:
    outbox = Outbox()
    writer = outbox.open(NAME)
    fill(writer, size)
    batch_bytes = outbox.post(writer, NAME)
    return batch_bytes, Inbox().open(batch_bytes)


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000, 1 << 20])
def test_bytes_arrive_unchanged(size: int) -> None:
    batch_bytes, received = send(size)
    assert np.array_equal(received, np.arange(size) % 251)
    assert received.flags.writeable
    assert (batch_bytes.segment == NAME) == (size >= 64 << 10)


def test_unused_segments_are_removed() -> None:
    outbox = Outbox()

    def is_there() -> bool:
        return os.path.exists(f"/dev/shm/{NAME}")

    for _ in range(2):
        writer = outbox.open(NAME)
        fill(writer, 100_000)
        Inbox().open(outbox.post(writer, NAME))
    outbox.open(NAME)
    assert is_there()
    outbox.discard()
    assert not is_there(), "the task failed"
    writer = outbox.open(NAME)
    fill(writer, 10)
    assert Inbox().open(outbox.post(writer, NAME)).tolist() == list(range(10))
    assert not is_there(), "the batch is small"
    outbox.open_larger(outbox.open(NAME))
    assert not is_there(), "the batch is too large for it"


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="names of segments are not files here")
def test_a_full_dev_shm_is_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    batch_bytes, received = send(100_000)
    assert batch_bytes.segment == ""
    assert np.array_equal(received, np.arange(100_000) % 251)
    assert not os.path.exists(f"/dev/shm/{NAME}")


def test_an_existing_segment_of_the_same_name_is_left_alone() -> None:
    other = SharedMemory(NAME, create=True, size=100)
    try:
        batch_bytes, _ = send(100_000)
        assert batch_bytes.segment == ""
    finally:
        other.close()
        other.unlink()


def test_batches_are_copied_once_there_are_too_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_MOST_SEGMENTS", 2)
    inbox, outbox = Inbox(), Outbox()
    kept = []
    for number in range(4):
        writer = outbox.open(NAME)
        fill(writer, 100_000 - number)
        kept.append(inbox.open(outbox.post(writer, NAME)))
    assert [type(memory.base).__name__ for memory in kept] == ["_Segment", "_Segment", "NoneType", "NoneType"]
    assert all(np.array_equal(memory[:99_000], np.arange(99_000) % 251) for memory in kept)


def test_no_fork_while_a_segment_is_being_opened() -> None:
    statuses: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if not_while_forking.acquire(blocking=False) else 1)
        statuses.append(os.waitpid(pid, 0)[1])

    forking = threading.Thread(target=fork)
    with not_while_forking:
        forking.start()
        forking.join(0.05)
        assert forking.is_alive(), "the process forked while a thread held the lock"
    forking.join()
    assert statuses == [0], "the lock was not free in the child"
