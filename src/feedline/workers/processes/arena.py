"""The training process's side on Linux: sockets, an arena, descriptors of processes.

Each worker has one socket pair. The training process keeps a copy of the worker's end, so that it can take back a task
the worker has not begun: the kernel gives each packet to exactly one reader, which makes the race between "begin" and
"take back" a fair one without any lock. A worker's death is detected through its `pidfd`, never through the socket.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import select
import socket
import threading
import time
from ctypes import c_int
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import TooManyOpenFiles, WorkerDied
from feedline.memory.arena import Arena
from feedline.memory.reading import Reader
from feedline.system import interrupts
from feedline.workers import lifetime
from feedline.workers.processes import link, start
from feedline.workers.processes.channel import Channel, Transport
from feedline.workers.processes.messages import Kind, Message, apart
from feedline.workers.processes.packets import receive, send, set_receive_timeout
from feedline.workers.processes.payload import Payload
from feedline.workers.processes.stacks import Stacks, is_asleep

_BIRTH_S = 8.0
"""Time within which a forked worker must reach the user's code. It takes milliseconds."""

_LOOK_AROUND_S = 0.02
"""How often a wait for one worker is interrupted to check that it lives, and how late it is."""


class SocketChannel(Channel):
    """A worker at the other end of a socket."""

    near: socket.socket
    far: socket.socket

    def __init__(self, number: int, generation: int = 0) -> None:
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pidfd = -1
        set_receive_timeout(self.near, _LOOK_AROUND_S)
        super().__init__(number, generation)

    def flush(self) -> None:
        while self.unsent and not self.dead:
            try:
                send(self.near, self.unsent[0], block=False)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                return  # its pidfd shows the rest
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

    def is_gone(self) -> bool:
        if self.pidfd < 0:
            return False
        poll = select.poll()  # select() does not support descriptors above 1023
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # closing is not enough: a fork of the trainer may have a copy of it
            self.near.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class ArenaTransport(Transport):
    """Workers that write their batches into an arena.

    Args:
        arena: shared memory for the batches.
        context: a multiprocessing context.
    """

    waits_for_one = True

    def __init__(self, arena: Arena, context: BaseContext) -> None:
        self._view = link.ArenaView(arena)
        self._context = context
        self._method = lifetime.start_method(context)
        self._epoll: Any = None  # Any: an epoll object once it is open
        self._stacks: Stacks | None = None
        self._by_fd: dict[int, SocketChannel] = {}
        self._payload: Payload | None = None
        """The serialised specification, the same for all workers that are not forked."""

    def open(self, spec: WorkerSpec) -> None:
        with interrupts.put_off(starts_process=False):  # otherwise an open file could be lost track of
            self._epoll = select.epoll()
            self._stacks = Stacks()
        if self._method != "fork":
            self._payload = Payload(spec)

    def connect(self, number: int, generation: int = 0) -> SocketChannel:
        channel = SocketChannel(number, generation)
        self._watch(channel, channel.near.fileno())
        return channel

    def launch(self, channel: Channel, spec: WorkerSpec, limits: list[c_int]) -> BaseProcess:
        assert isinstance(channel, SocketChannel)
        assert self._stacks is not None
        worker_link = link.ArenaLink(
            channel.number,
            channel.far,
            self._view,
            os.getpid(),
            self._stacks.far,
            channel.generation,
            threading.current_thread() is threading.main_thread(),
        )
        if self._method == "fork":
            channel.deadline_s = time.monotonic() + _BIRTH_S
            process = start.start_forked(self._context, worker_link, channel.far, spec, limits)
        else:
            self._payload = self._payload or Payload(spec)
            process = start.start_fresh(self._context, worker_link, self._payload)
        assert process.pid is not None
        try:
            channel.pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            # The fork server, its parent, has already reaped it. The sentinel shows the same from now on.
            channel.pidfd = os.dup(process.sentinel)
        self._watch(channel, channel.pidfd)
        return process

    def _watch(self, channel: SocketChannel, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._by_fd[fd] = channel

    def wait(self, timeout_s: float) -> list[tuple[Channel, bool]]:
        by_fd = self._by_fd
        return [(by_fd[fd], fd == by_fd[fd].pidfd) for fd, _ in self._epoll.poll(timeout_s)]

    def forget(self, channel: Channel) -> None:
        assert isinstance(channel, SocketChannel)
        for fd in (channel.pidfd, channel.near.fileno()):
            if fd >= 0:
                self._epoll.unregister(fd)
                del self._by_fd[fd]

    def give_up_on(self, channel: Channel) -> None:
        assert channel.process is not None
        pid = channel.process.pid or 0
        if not is_asleep(pid):
            channel.deadline_s = time.monotonic() + _BIRTH_S  # it is running: the machine is busy
            return
        channel.deadline_s = math.inf
        stack = self.stack(pid)
        channel.process.kill()
        channel.hang_error = WorkerDied(
            f"Worker {channel.number} (pid {pid}) has hung since it was forked: another thread of this program held a "
            "lock at that moment, and the worker inherited it without the thread that would release it. Start workers "
            "while no other thread computes or draws random numbers, or use the start method 'forkserver' "
            "(multiprocessing_context='forkserver'). " + ("" if stack is None else f"Where it hangs:\n{stack.rstrip()}")
        )

    def called(self) -> None:
        if self._payload is not None:  # the next worker gets the dataset as it is then
            self._payload.close()
            self._payload = None

    def stack(self, pid: int) -> str | None:
        return None if self._stacks is None else self._stacks.of(pid)

    def close(self) -> None:
        for part in (self._payload, self._stacks, self._epoll):
            if part is not None:
                part.close()
