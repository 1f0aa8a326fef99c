"""Messages between the training process and its workers."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedline.errors import TooManyOpenFiles
from feedline.memory.sparse import create_memfd
from feedline.types import TIMES, Call, Draw, IndexBlock, Position, Span, Task
from feedline.workers.failure import unpack_failure
from feedline.workers.processes.link import receive, send
from feedline.workers.processes.messages import (
    Kind,
    Message,
    apart,
    joined,
    read_task,
    task_message,
)
from tests.faults.limits import descriptors_left

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield left, right


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def exchange(pair: Pair, message: Message) -> Message:
    send(pair[0], message, block=True)
    arrived = receive(pair[1], block=True)
    assert arrived is not None
    return arrived


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(Kind),
    task_id=st.integers(0, 2**64 - 1),
    body=st.binary(max_size=300) | st.integers(47 << 10, 50 << 10).map(bytes),
    used=st.integers(0, 2**64 - 1),
    busy_ns=st.integers(0, 2**64 - 1),
    times=st.binary(min_size=TIMES.size, max_size=TIMES.size),
)
def test_a_message_arrives_as_it_was_sent(
    pair: Pair, kind: Kind, task_id: int, body: bytes, used: int, busy_ns: int, times: bytes
) -> None:
    message = Message(kind, task_id, body, used, busy_ns, times=times)
    assert exchange(pair, message) == message


@pytest.mark.parametrize("size", [48 << 10, (48 << 10) + 1, 20 << 20])
def test_bodies_of_any_length_arrive(pair: Pair, size: int) -> None:
    body = os.urandom(min(size, 1000)) * (size // 1000 + 1)
    before = open_descriptors()
    assert exchange(pair, Message(Kind.DONE, 1, body[:size])).body == body[:size]
    assert open_descriptors() == before


def test_a_descriptor_travels_and_is_owned_by_the_receiver(pair: Pair) -> None:
    before = open_descriptors()
    fd = create_memfd(4096)
    os.pwrite(fd, b"batch", 0)
    message = exchange(pair, Message(Kind.DONE, 3, b"header", 5, fd=fd))
    assert message.fd >= 0
    with mmap.mmap(message.fd, 4096) as mapping:
        assert mapping[:5] == b"batch"
    assert not os.get_inheritable(message.fd)
    os.close(message.fd)
    assert open_descriptors() == before, "the sender's descriptor is closed"


def test_a_descriptor_is_closed_even_if_sending_fails(pair: Pair) -> None:
    before = open_descriptors()
    pair[1].close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send(pair[0], Message(Kind.DONE, 1, b"", fd=create_memfd(10)), block=True)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send(pair[0], Message(Kind.DONE, 1, b"x" * 100_000), block=True)
    assert open_descriptors() == before - 1


def test_a_closed_peer_reads_as_the_end(pair: Pair) -> None:
    send(pair[0], Message(Kind.ENDED, 9, b""), block=True)
    pair[0].close()
    message = receive(pair[1], block=False)
    assert message is not None
    assert message.task_id == 9, "earlier messages still arrive"
    assert receive(pair[1], block=False) is None
    assert receive(pair[1], block=True) is None


def test_a_message_that_did_not_fit_can_be_sent_again(pair: Pair) -> None:
    before = open_descriptors()
    with contextlib.suppress(BlockingIOError):
        for _ in range(1000):
            send(pair[0], Message(Kind.TASK, 0, b"x" * 10_000), block=False)
    pending = Message(Kind.DONE, 5, b"header", 4, fd=create_memfd(10))
    for message in (pending, Message(Kind.DONE, 6, b"x" * 100_000)):
        with pytest.raises(BlockingIOError):
            send(pair[0], message, block=False)
    with contextlib.suppress(BlockingIOError):
        while True:
            receive(pair[1], block=False)
    arrived = exchange(pair, pending)
    assert (arrived.task_id, arrived.fd >= 0) == (5, True)
    os.close(arrived.fd)
    assert open_descriptors() == before


# -- out of descriptors ---


@pytest.mark.parametrize("long", [True, False])
def test_without_descriptors_the_task_fails_and_the_next_message_arrives(pair: Pair, long: bool) -> None:
    if long:
        send(pair[0], Message(Kind.DONE, 5, b"x" * 100_000), block=True)
    else:
        send(pair[0], Message(Kind.DONE, 5, b"header", fd=create_memfd(10)), block=True)
    send(pair[0], Message(Kind.DONE, 6, b"short"), block=True)
    with descriptors_left(0):
        message = receive(pair[1], block=False)
        following = receive(pair[1], block=False)
    assert message is not None
    assert (message.kind, message.task_id, message.fd) == (Kind.FAILED, 5, -1)
    failure = unpack_failure(message.body)
    assert type(failure) is TooManyOpenFiles
    assert "ulimit -n" in str(failure)
    assert following is not None
    assert (following.task_id, following.body) == (6, b"short")


# -- tasks ---


def same_indices(left: Any, right: Any) -> bool:
    if isinstance(left, IndexBlock):
        return isinstance(right, IndexBlock) and np.array_equal(left.array, right.array)
    return bool(left == right) and type(left) is type(right)


blocks = st.lists(st.integers(-(2**63), 2**63 - 1)).map(lambda values: IndexBlock(np.array(values, np.int64)))
draws = st.builds(Draw, st.integers(0, 2**64 - 1), st.integers(0, 2**62), st.integers(1, 2**30))


@given(
    indices=blocks
    | st.lists(st.integers())
    | st.text()
    | st.integers()
    | st.none()
    | st.tuples(st.text(), st.integers())
    | st.builds(Span, st.integers(0, 2**40), st.integers(0, 2**62))
    | st.builds(Call, st.text(), st.tuples(st.integers())),
    task_id=st.integers(0, 2**63),
    slot=st.integers(-1, 1000),
    epoch=st.integers(0, 2**40),
    shared_seed=st.none() | st.integers(-(2**63), 2**63),
    draw=draws,
    resume=st.none() | st.builds(Position, st.none() | st.text(), st.none() | st.integers(), st.integers(0, 2**40)),
    snapshot=st.booleans(),
    skip=st.lists(st.integers(0, 2**20), max_size=3).map(tuple),
)
def test_a_task_arrives_as_it_was_sent(
    indices: Any,
    task_id: int,
    slot: int,
    epoch: int,
    shared_seed: int | None,
    draw: Draw,
    resume: Position | None,
    snapshot: bool,
    skip: tuple[int, ...],
) -> None:
    task = Task(task_id, indices, slot, epoch, shared_seed, draw, resume, snapshot, skip)
    arrived = read_task(task_message(task))
    assert same_indices(arrived.indices, task.indices)
    assert (arrived.id, arrived.slot, arrived.epoch) == (task_id, slot, epoch)
    assert arrived.shared_seed == shared_seed
    assert (arrived.draw, arrived.resume, arrived.snapshot) == (draw, resume, snapshot)
    assert arrived.skip == skip


def test_a_block_of_indices_arrives_writable() -> None:
    arrived = read_task(task_message(Task(1, IndexBlock(np.arange(4)))))
    assert arrived.indices.array.flags.writeable, "torch warns about read-only arrays"


# -- several tasks in a message ---


@pytest.mark.parametrize("count", [1, 2, 9])
def test_tasks_sent_in_one_message_arrive_as_they_were(pair: Pair, count: int) -> None:
    tasks = [
        Task(number, IndexBlock(np.arange(number)) if number % 3 else [number, "x"], draw=Draw(number, 7, 2))
        for number in range(1, count + 1)
    ]
    together = joined([task_message(task) for task in tasks])
    assert together is not None
    arrived = apart(exchange(pair, together))
    assert arrived == [task_message(task) for task in tasks]
    assert [read_task(message).draw for message in arrived] == [task.draw for task in tasks]
    long = task_message(Task(count, IndexBlock(np.arange(6000))))
    assert joined([long, long]) is None, "too long for a packet"
