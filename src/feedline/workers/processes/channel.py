"""One worker process, as seen from the training process: its socket, its process, its end."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
from collections import deque
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

from feedline.errors import WorkerDied
from feedline.system.references import References
from feedline.workers.processes.messages import Kind, Message, apart, receive, send, set_receive_timeout

LOOK_AROUND_S = 0.02
"""How often a wait for one worker is interrupted to check that it lives, and how late it is."""


class Channel:
    """One worker, seen from the training process."""

    def __init__(self, number: int, generation: int = 0) -> None:
        self.number = number
        self.generation = generation
        """How many workers had this number before."""
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process: BaseProcess | None = None
        self.pidfd = -1
        set_receive_timeout(self.near, LOOK_AROUND_S)
        self.unsent: deque[Message] = deque()
        self.dead = False
        self.deadline_s = math.inf
        """The time by which the worker must report that it is alive."""
        self.alive_s = 0.0
        """When it last did."""
        self.is_ready = False
        """True once the worker has reported it."""
        self.hang_error: WorkerDied | None = None
        """The error for a worker that has hung since it was forked."""
        self.unready: BaseException | None = None
        """Why the worker could not get ready, if it reported that."""
        _channels.add(self)

    def flush(self) -> None:
        """Send as much as the socket accepts; the rest waits for the next call, so the training loop never blocks."""
        while self.unsent and not self.dead:
            try:
                send(self.near, self.unsent[0], block=False)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                return  # its pidfd shows the rest
            self.unsent.popleft()

    def take_back(self) -> int | None:
        """Take back the oldest task that the worker has not begun; return its number, None if there is none.

        If it was sent together with others, the next `flush` resends those that the worker has not read, one by one.
        """
        unread: list[Message] = []
        others: list[Message] = []
        with contextlib.suppress(BlockingIOError):
            while len(unread) != 1 and (message := receive(self.far, block=False)) is not None:
                (unread if message.kind is Kind.TASK else others).extend(apart(message))
        while not unread and self.unsent:
            message = self.unsent.popleft()
            (unread if message.kind is Kind.TASK else others).extend(apart(message))
        taken = unread.pop(0).task_id if unread else None
        self.unsent.extendleft(reversed([*others, *unread]))
        return taken

    def is_gone(self) -> bool:
        """True if the worker has ended."""
        if self.pidfd < 0:
            return False
        poll = select.poll()  # select() does not support descriptors above 1023
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the descriptors. The process is not ended here."""
        self.near.close()
        self.far.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


_channels: References[Channel] = References()
"""Every channel of this process."""

_passed: list[socket.socket] = []
"""The socket of the worker that is being forked."""


@contextlib.contextmanager
def passed_on(own: socket.socket) -> Iterator[None]:
    """A context in which to fork a worker: it keeps its own socket."""
    _passed.append(own)
    try:
        yield
    finally:
        _passed.remove(own)


def _close_in_child() -> None:
    # A copy would keep a worker from noticing that its socket was closed. And when a child of the user's drops an
    # iterator that it was forked with, Python would warn of each socket.
    # Test: tests/faults/test_forked.py::test_a_child_gets_no_warning_about_what_it_was_forked_with
    for channel in _channels:
        for sock in (channel.near, channel.far):
            if not any(sock is own for own in _passed):
                sock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
