"""The memory in which a batch travels to the training process."""

from __future__ import annotations

import errno
import os
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest

from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.codec import Bytes, Codec, Reader
from feedline.types import Task
from feedline.workers.portable import segments
from feedline.workers.portable.segments import IN_SEGMENT, Inbox, Outbox
from feedline.workers.processes.messages import Message

PREFIX = f"feedline_test_{os.getpid()}_"
NAME = f"{PREFIX}7"
TASK = Task(7, [0])
CODEC = Codec(NumpyFramework())


def numbers(size: int) -> Bytes:
    return (np.arange(size) % 251).astype(np.uint8)


def made(outbox: Outbox, size: int) -> Message:
    return outbox.answer(CODEC, numbers(size), outbox.writer(TASK), TASK)


def received(message: Message, inbox: Inbox | None = None) -> Any:
    if message.mark != IN_SEGMENT:
        return CODEC.decode_packed(message.body, message.used)
    return CODEC.decode(message.body, Reader((inbox or Inbox()).open(NAME, message.used)))


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000, 1 << 20])
def test_bytes_arrive_unchanged(size: int) -> None:
    message = made(Outbox(PREFIX), size)
    assert (message.mark == IN_SEGMENT) == (size >= 64 << 10)
    arrived = received(message)
    assert np.array_equal(arrived, numbers(size))
    assert arrived.flags.writeable


def test_unused_segments_are_removed() -> None:
    outbox = Outbox(PREFIX)

    def is_there() -> bool:
        return os.path.exists(f"/dev/shm/{NAME}")

    for _ in range(2):
        received(made(outbox, 100_000))
    outbox.writer(TASK)
    assert is_there()
    outbox.discard()
    assert not is_there(), "the task failed"
    assert received(made(outbox, 10)).tolist() == list(range(10))
    assert not is_there(), "the batch is small"
    assert made(outbox, 10 << 20).mark == IN_SEGMENT
    assert is_there(), "it holds a batch that did not fit the one before"
    segments.remove_segment(NAME)
    assert not is_there()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="names of segments are not files here")
def test_a_full_dev_shm_is_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    message = made(Outbox(PREFIX), 100_000)
    assert message.mark == 0
    assert np.array_equal(received(message), numbers(100_000))
    assert not os.path.exists(f"/dev/shm/{NAME}")


def test_an_existing_segment_of_the_same_name_is_left_alone() -> None:
    other = SharedMemory(NAME, create=True, size=100)
    try:
        assert made(Outbox(PREFIX), 100_000).mark == 0
    finally:
        other.close()
        other.unlink()


def test_batches_are_copied_once_there_are_too_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_MOST_SEGMENTS", 2)
    inbox, outbox = Inbox(), Outbox(PREFIX)
    kept = []
    for number in range(4):
        kept.append(inbox.open(NAME, made(outbox, 100_000 - number).used))
    assert [type(memory.base).__name__ for memory in kept] == ["_Segment", "_Segment", "NoneType", "NoneType"]
    assert all(np.array_equal(memory[:99_000], numbers(99_000)) for memory in kept)
