"""One worker process, as the training process sees it: its socket, its process, its end."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
from collections import deque
from multiprocessing.process import BaseProcess

from feedline.errors import WorkerDied
from feedline.system.references import References
from feedline.workers.processes.messages import Kind, Message, apart, receive, send, set_receive_timeout

LOOK_AROUND_S = 0.02
"""How often a wait for one worker is interrupted to see whether it lives, and how late it is."""


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
        """Until when the worker has to say that it is alive."""
        self.is_ready = False
        """True once the worker has said so."""
        self.stillborn: WorkerDied | None = None
        """What is to be said of a worker that hangs since it was forked."""
        self.unready: BaseException | None = None
        """Why the worker could not get ready, if it said so."""
        _channels.add(self)

    def flush(self) -> None:
        """Send what the socket accepts; the rest waits for the next call, so the training loop never blocks here."""
        while self.unsent and not self.dead:
            try:
                send(self.near, self.unsent[0], block=False)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                return  # its pidfd tells the rest
            self.unsent.popleft()

    def take_back(self) -> int | None:
        """Take back the oldest task that the worker has not begun; returns its number, None if there is none.

        If it came together with others, all that the worker has not read is sent again by the next `flush`, one by one.
        """
        unread: list[Message] = []
        said: list[Message] = []
        with contextlib.suppress(BlockingIOError):
            while len(unread) != 1 and (message := receive(self.far, block=False)) is not None:
                (unread if message.kind is Kind.TASK else said).extend(apart(message))
        while not unread and self.unsent:
            message = self.unsent.popleft()
            (unread if message.kind is Kind.TASK else said).extend(apart(message))
        taken = unread.pop(0).task_id if unread else None
        self.unsent.extendleft(reversed([*said, *unread]))
        return taken

    def forget(self, task_id: int) -> None:
        """Tell the worker that nobody wants the tasks up to this number, of which it may have read several."""
        self.unsent.append(Message(Kind.UNWANTED, task_id, b""))
        self.flush()

    def is_gone(self) -> bool:
        """True if the worker has ended."""
        if self.pidfd < 0:
            return False
        poll = select.poll()  # select() knows no descriptors above 1023
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Give the descriptors back. The process is somebody else's business."""
        self.near.close()
        self.far.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


_channels: References[Channel] = References()
"""Every channel of this process: a forked worker closes those that are not its own."""


def sockets_of_others(own: socket.socket) -> list[socket.socket]:
    """Return the sockets of this process that belong to other workers than the one that has `own`."""
    sockets = [sock for channel in _channels for sock in (channel.near, channel.far)]
    return [sock for sock in sockets if sock is not own]
