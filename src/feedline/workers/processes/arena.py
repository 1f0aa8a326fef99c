"""The training process's side on Linux: sockets and an arena.

Each worker has one socket pair. The training process keeps a copy of the worker's end, so that it can take back a task
the worker has not begun: the kernel gives each packet to exactly one reader, which makes the race between "begin" and
"take back" a fair one without any lock. A worker's death is detected through its process, never through the socket.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import select
import socket
import threading
from multiprocessing.context import BaseContext

import numpy as np

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import TooManyOpenFiles
from feedline.memory.arena import Arena
from feedline.memory.codec import Reader
from feedline.system import interrupts
from feedline.workers.processes import link
from feedline.workers.processes.channel import Channel, Transport
from feedline.workers.processes.link import STACK_SIGNAL, receive, send, set_receive_timeout
from feedline.workers.processes.messages import Kind, Message, apart
from feedline.workers.processes.payload import Payload

_LOOK_AROUND_S = 0.02
"""How often a wait for one worker is interrupted to check that it lives, and how late it is."""


class SocketChannel(Channel):
    """A worker at the other end of a socket."""

    near: socket.socket
    far: socket.socket

    def __init__(self, number: int, generation: int = 0) -> None:
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        set_receive_timeout(self.near, _LOOK_AROUND_S)
        super().__init__(number, generation)

    def flush(self) -> None:
        while self.unsent and not self.dead:
            try:
                send(self.near, self.unsent[0], block=False)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                return  # its end is noticed elsewhere
            self.unsent.popleft()

    def receive(self, *, block: bool = False) -> Message | None:
        try:
            return receive(self.near, block=block)
        except ConnectionResetError:
            return None

    def take_back(self) -> int | None:
        # If the task was sent together with others, the next `flush` resends those that the worker has not read, one
        # by one.
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

    def reader(self, message: Message) -> Reader | None:
        """Return a reader that copies: a mapping holds a descriptor, and a program may keep thousands of batches."""
        if message.fd < 0:
            return None
        try:
            return Reader(np.frombuffer(mmap.mmap(message.fd, max(message.used, 1), prot=mmap.PROT_READ), np.uint8))
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE):
                raise TooManyOpenFiles("taking over the memory of a batch") from exc
            raise
        finally:
            os.close(message.fd)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # closing is not enough: a fork of the trainer may have a copy of it
            self.near.shutdown(socket.SHUT_RDWR)


class ArenaTransport(Transport):
    """Workers that write their batches into an arena.

    Args:
        arena: shared memory for the batches.
        context: a multiprocessing context.
    """

    waits_for_one = True

    def __init__(self, arena: Arena, context: BaseContext) -> None:
        super().__init__(context)
        self._view = link.ArenaView(arena)
        self._stacks: Stacks | None = None
        self._payload: Payload | None = None
        """The serialised specification, the same for all workers that are not forked."""

    def open(self, spec: WorkerSpec) -> None:
        with interrupts.put_off(starts_process=False):  # otherwise an open file could be lost track of
            self._stacks = Stacks()
        if not self.forks:
            self.packed(spec)

    def connect(self, number: int, generation: int = 0) -> SocketChannel:
        return SocketChannel(number, generation)

    def link(self, channel: Channel) -> link.ArenaLink:
        assert isinstance(channel, SocketChannel)
        assert self._stacks is not None
        return link.ArenaLink(
            channel.number,
            channel.far,
            self._view,
            os.getpid(),
            self._stacks.far,
            channel.generation,
            threading.current_thread() is threading.main_thread(),
        )

    def packed(self, spec: WorkerSpec) -> Payload:
        if self._payload is None:
            self._payload = Payload(spec)
        return self._payload

    def called(self) -> None:
        if self._payload is not None:  # the next worker gets the dataset as it is then
            self._payload.close()
            self._payload = None

    def stack(self, pid: int) -> str | None:
        return None if self._stacks is None else self._stacks.of(pid)

    def close(self) -> None:
        for part in (self._payload, self._stacks):
            if part is not None:
                part.close()


# -- the stacks of workers ---

_PATIENCE_S = 0.5
"""How long a worker may take to write its stacks. It takes a millisecond, unless the process is swapped out."""


class Stacks:
    """A pipe into which an engine's workers write their stacks on request, one at a time."""

    def __init__(self) -> None:
        self._near, self.far = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The handler in the worker writes once and does not retry.
        with contextlib.suppress(OSError):  # refused where a user has many pipes: then the usual 64 KB must do
            fcntl.fcntl(self.far, fcntl.F_SETPIPE_SZ, 1 << 18)

    def of(self, pid: int) -> str | None:
        """Return the stacks of a worker; None if it does not answer."""
        if not _listens(pid):
            return None
        self.read()  # discard late answers to earlier requests
        try:
            os.kill(pid, STACK_SIGNAL)
        except ProcessLookupError:
            return None
        poll = select.poll()
        poll.register(self._near, select.POLLIN)
        text = ""
        wait_s = _PATIENCE_S
        while poll.poll(wait_s * 1000):
            text += self.read()
            wait_s = 0.02  # the rest follows at once
        return text or None

    def read(self) -> str:
        """Return what was written and not read yet, for example by a worker that crashed."""
        parts = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._near, 1 << 16):
                parts.append(data)
        return b"".join(parts).decode(errors="replace")

    def close(self) -> None:
        """Close the descriptors. May be called twice."""
        for fd in {self._near, self.far} - {-1}:
            os.close(fd)
        self._near = self.far = -1


def _listens(pid: int) -> bool:
    """True if the worker has installed its handler, so that the signal does not end it."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except OSError:
        return False
    return bool(int(caught, 16) >> (STACK_SIGNAL - 1) & 1)
