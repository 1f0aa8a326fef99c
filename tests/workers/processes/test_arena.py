"""The training process's side on Linux: a worker at the other end of a socket, and its stacks."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest

from feedline.types import Task
from feedline.workers.processes.arena import SocketChannel, Stacks
from feedline.workers.processes.channel import passed_on
from feedline.workers.processes.link import STACK_SIGNAL, receive
from feedline.workers.processes.messages import Kind, Message, joined, task_message
from tests.parity.children import in_a_child


@pytest.fixture
def channel() -> Iterator[SocketChannel]:
    channel = SocketChannel(3, generation=2)
    yield channel
    channel.close()


def received_tasks(channel: SocketChannel) -> list[int]:
    """Receive what has arrived at the worker's end; returns the ids of the tasks."""
    numbers = []
    while select.select([channel.far], [], [], 0)[0]:
        message = receive(channel.far, block=False)
        if message is None:
            break
        numbers.append(message.task_id)
    return numbers


def test_messages_that_the_socket_does_not_accept_wait_in_order(channel: SocketChannel) -> None:
    channel.unsent.extend(Message(Kind.TASK, number, b"x" * 40_000) for number in range(30))
    channel.flush()
    left = [message.task_id for message in channel.unsent]
    assert 0 < len(left) < 30, "a socket holds some of them, but not all"
    arrived = received_tasks(channel)
    assert arrived + left == list(range(30))
    while channel.unsent:
        channel.flush()
        arrived += received_tasks(channel)
    assert arrived == list(range(30))


def test_a_forked_process_keeps_only_the_socket_that_is_passed_on(channel: SocketChannel) -> None:
    other = SocketChannel(0)
    expected = {"own": True, "the other end": False, "another worker's": [False, False]}

    def is_open() -> object:
        ends = [sock.fileno() >= 0 for sock in (channel.far, channel.near, other.near, other.far)]
        return dict(zip(expected, [ends[0], ends[1], ends[2:]], strict=True))

    with passed_on(channel.far):
        assert in_a_child(is_open) == expected
    assert in_a_child(is_open) == {**expected, "own": False}
    assert all(sock.fileno() >= 0 for sock in (channel.far, channel.near, other.near, other.far))
    other.close()


# -- tasks sent in one message ---


def one_message(numbers: range) -> Message:
    message = joined([task_message(Task(number, [number])) for number in numbers])
    assert message is not None
    return message


@pytest.mark.parametrize("dead", [False, True], ids=["sent", "unsent"])
def test_tasks_sent_in_one_message_are_taken_back_one_by_one(channel: SocketChannel, dead: bool) -> None:
    channel.dead = dead
    for message in (one_message(range(3)), task_message(Task(3, [3])), one_message(range(4, 6))):
        channel.unsent.append(message)
        channel.flush()
    assert [channel.take_back() for _ in range(7)] == [0, 1, 2, 3, 4, 5, None]


def test_the_remaining_tasks_of_a_message_are_sent_again_one_by_one(channel: SocketChannel) -> None:
    channel.unsent += [one_message(range(3)), task_message(Task(3, [3]))]
    channel.flush()
    assert channel.take_back() == 0
    assert received_tasks(channel) == [], "the worker no longer has them"
    channel.flush()
    assert received_tasks(channel) == [1, 2, 3]


# -- stacks ---


def test_a_process_that_would_die_of_the_signal_is_not_sent_it() -> None:
    """The contract of engines tests that a worker's stacks name the function in which it waits."""
    stacks = Stacks()
    child = os.fork()
    if child == 0:
        signal.signal(STACK_SIGNAL, signal.SIG_DFL)
        while True:
            signal.pause()
    assert stacks.of(child) is None
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "it is still running"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    stacks.close()
