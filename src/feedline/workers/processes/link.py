"""How a worker is connected to the training process on Linux: by packets of a socket, and by the arena.

A packet arrives whole or not at all (SOCK_SEQPACKET, which only Linux has in this form), so a worker that is killed
while sending leaves no partial message. A body too long for a packet travels in a `memfd` whose descriptor goes along.

The worker ends when its socket closes or when the training process is gone, whichever it notices first. It watches that
process through a descriptor (`pidfd`), because other children of the trainer may hold copies of the socket and keep it
open.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import faulthandler
import itertools
import mmap
import os
import select
import signal
import socket
import struct
import threading
from dataclasses import dataclass, replace
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.errors import TooManyOpenFiles, TransportError
from feedline.memory.codec import SMALL_BYTES, Bytes, Codec, MessageWriter, SlotFull, SlotWriter
from feedline.memory.sparse import advise_huge_pages, create_memfd, make_private, map_again, map_file, why_no_more
from feedline.types import Task
from feedline.workers.failure import pack_failure
from feedline.workers.heap import Heap
from feedline.workers.processes.messages import HEAD, PACKET_BYTES, Kind, Message, apart, packed, read_task, unpacked
from feedline.workers.processes.worker import BatchMemory, Link

if TYPE_CHECKING:
    from feedline.memory.arena import Arena

STACK_SIGNAL = signal.SIGRTMAX - 2
"""The signal on which a worker writes its stacks, in C, even if it is stuck. Hardly any program uses it."""

_OVERFLOW_BYTES = 64 << 30
"""Address space for a batch that does not fit its slot; only the part that is written takes memory."""

_LOOK_AROUND_S = 0.2
"""How often an idle worker checks that the training process lives. Usually the socket shows its end at once."""

# -- packets ---

_LONGEST = PACKET_BYTES + HEAD.size
_ANCILLARY = socket.CMSG_SPACE(array.array("i").itemsize)
_LONG = 1
"""Mark of a message whose body is in the memory that came with it."""

# Plain numbers: combining the socket module's enum members costs more than the system call they are for.
_AT_ONCE = int(socket.MSG_DONTWAIT)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_CLOSE_ON_EXEC_AT_ONCE = _CLOSE_ON_EXEC | _AT_ONCE
_PEEK = int(socket.MSG_PEEK) | _AT_ONCE
_CONTROL_CUT_OFF = int(socket.MSG_CTRUNC)


def send(sock: socket.socket, message: Message, *, block: bool) -> None:
    """Send a message; takes ownership of `message.fd`.

    Raises:
        BlockingIOError: `block` is False and the other side has too many packets waiting. You can send the message
            again: it still owns its descriptor.
        BrokenPipeError, ConnectionResetError: the other side is gone.
    """
    fd, sent = message.fd, message
    is_long = len(message.body) > PACKET_BYTES
    try:
        if is_long:
            if fd >= 0:
                raise ValueError("a message has either a long body or memory of its own")
            fd = create_memfd(len(message.body))
            with open(fd, "wb", closefd=False) as file:
                file.write(message.body)
            sent = replace(message, body=len(message.body).to_bytes(8, "little"), mark=_LONG)
        flags = 0 if block else _AT_ONCE
        if fd < 0:
            sock.send(packed(sent), flags)
        else:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            sock.sendmsg([packed(sent)], rights, flags)
    except BlockingIOError:
        if is_long:
            os.close(fd)
        raise
    except BaseException:
        if fd >= 0:
            os.close(fd)
        raise
    if fd >= 0:
        os.close(fd)


def set_receive_timeout(sock: socket.socket, timeout_s: float) -> None:
    """Make a blocking `receive` raise BlockingIOError after `timeout_s`."""
    seconds, rest = divmod(timeout_s, 1.0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(seconds), int(rest * 1e6)))


def receive(sock: socket.socket, *, block: bool) -> Message | None:
    """Take the next message; None when the other side is gone.

    If a message's descriptor could not be received, because this process has too many open, the message arrives as a
    failure of its task.

    Raises:
        BlockingIOError: nothing is waiting, and `block` is False or the socket's timeout has passed.
    """
    data, ancillary, flags, _ = sock.recvmsg(_LONGEST, _ANCILLARY, _CLOSE_ON_EXEC if block else _CLOSE_ON_EXEC_AT_ONCE)
    if not data:
        return None
    message = unpacked(data)
    if flags & _CONTROL_CUT_OFF:
        failure = TooManyOpenFiles("taking over the memory of a batch")
        return Message(Kind.FAILED, message.task_id, pack_failure(failure, "in the process that receives it"))
    for level, type_, rights in ancillary:
        if level == socket.SOL_SOCKET and type_ == socket.SCM_RIGHTS:
            message.fd = array.array("i", rights[:4])[0]
    if message.mark == _LONG:
        with open(message.fd, "rb") as file:
            file.seek(0)
            message.body = file.read(int.from_bytes(message.body, "little"))
        message.fd, message.mark = -1, 0
    return message


def waiting_tasks(sock: socket.socket) -> list[Message]:
    """Return the tasks of the next waiting message without taking it; none if there are none."""
    try:
        data = sock.recv(_LONGEST, _PEEK)
    except BlockingIOError:
        return []
    message = unpacked(data) if data else None
    return apart(message) if message is not None and message.kind is Kind.TASK and message.mark != _LONG else []


# -- the worker's end ---


@dataclass
class ArenaLink(Link):
    """The socket and the arena of one worker."""

    number: int
    sock: socket.socket
    memory: ArenaView
    trainer_pid: int
    stacks_fd: int = -1
    """Where the worker's stacks are written when the training process requests them."""
    generation: int = 0
    started_by_main_thread: bool = False

    def __getstate__(self) -> dict[str, object]:
        fds = {"sock": reduction.DupFd(self.sock.fileno()), "stacks_fd": reduction.DupFd(self.stacks_fd)}
        return {**self.__dict__, **fds}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fd = state.pop("sock").detach()
        state["stacks_fd"] = state["stacks_fd"].detach()
        self.__dict__.update(state)
        self.sock = socket.socket(fileno=fd)

    def open(self) -> None:
        trainer = os.pidfd_open(self.trainer_pid)
        self._end = select.poll()  # select() does not support descriptors above 1023
        self._end.register(trainer, select.POLLIN)
        set_receive_timeout(self.sock, _LOOK_AROUND_S)
        end_with(self.trainer_pid, trainer, started_by_main_thread=self.started_by_main_thread)
        if self.stacks_fd >= 0:
            faulthandler.register(STACK_SIGNAL, file=self.stacks_fd, all_threads=True)

    def next_message(self, heap: Heap) -> Message | None:
        for waits in itertools.count(1):
            try:
                return receive(self.sock, block=True)
            except BlockingIOError:
                if self._end.poll(0):
                    break
                heap.rested(waits)
        return None

    def has_closed(self) -> bool:
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def waiting_tasks(self) -> list[Task]:
        return [read_task(message) for message in waiting_tasks(self.sock)]

    def tell(self, message: Message) -> None:
        while True:
            try:
                return send(self.sock, message, block=False)
            except BlockingIOError:  # many answers are waiting to be read
                writable = select.poll()
                writable.register(self.sock, select.POLLOUT)
                if not writable.poll(_LOOK_AROUND_S * 1000) and self._end.poll(0):
                    raise BrokenPipeError from None


class ArenaView(BatchMemory):
    """A worker's view of the arena: memory by slot number, without any control over who owns a slot.

    A forked worker uses the mapping it inherited; others map the same memory again. A closed arena has no free slots,
    so a worker that starts later needs none of its memory, and its descriptor may be another file by then.
    """

    def __init__(self, arena: Arena) -> None:
        self.slot_bytes = arena.slot_bytes
        self._size = len(arena.mapping)
        self._arena: Arena | None = arena
        self._map: mmap.mmap | None = arena.mapping
        self.address = arena.address
        self._moved: dict[int, mmap.mmap] = {}
        """Slots that this process has mapped again at other addresses."""
        self._is_advised = False
        self._make_room()

    def __getstate__(self) -> dict[str, object]:
        fd = self._descriptor
        sent = None if fd < 0 else reduction.DupFd(fd)
        return {"slot_bytes": self.slot_bytes, "_size": self._size, "_fd": sent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        sent = state.pop("_fd")
        self.__dict__.update(state)
        self._arena, self._map, self.address, self._fd = None, None, 0, -1
        if sent is not None:
            self._fd = sent.detach()
            self._map = map_again(self._fd, self._size)
            self.address = np.frombuffer(self._map, np.uint8, 1).__array_interface__["data"][0]
        self._moved = {}
        self._is_advised = False
        self._make_room()

    @property
    def _descriptor(self) -> int:
        """The descriptor of the arena's memory; negative once the arena is closed."""
        return self._fd if self._arena is None else self._arena.fd

    def _make_room(self) -> None:
        """Allocate memory for batches without a slot, which travel in a message if they are small enough."""
        self._small = np.empty(SMALL_BYTES, np.uint8)
        self._small_address = self._small.__array_interface__["data"][0]

    def writer(self, task: Task) -> SlotWriter:
        slot = task.slot
        if slot < 0:
            return MessageWriter(self._small, self._small_address)
        moved = self._moved.get(slot)
        if moved is None:
            assert self._map is not None
            view: Bytes = np.frombuffer(self._map, np.uint8, self.slot_bytes, slot * self.slot_bytes)
            address = self.address + slot * self.slot_bytes
        else:
            view = np.frombuffer(moved, np.uint8, self.slot_bytes)
            address = view.__array_interface__["data"][0]
        return SlotWriter(view, address, None if self._is_advised else self._advise, shared=True)

    def _advise(self) -> None:
        """Make this process write into huge pages: this depends on its own mapping."""
        self._is_advised = True
        if self._map is not None:
            advise_huge_pages(self._map)

    def answer(self, codec: Codec, batch: object, writer: SlotWriter, task: Task) -> Message:
        try:
            body = codec.encode(batch, writer)
        except SlotFull:
            return _overflow(codec, batch, task.id)
        if isinstance(writer, MessageWriter):
            body += writer.contents()
        return Message(Kind.DONE, task.id, body, writer.used)

    def part_with(self, task: Task, address: int, used: int, answer: Message) -> None:
        if task.slot >= 0:
            make_private(address, used)
            moved = map_again(self._descriptor, self.slot_bytes, offset=task.slot * self.slot_bytes)
            self._moved[task.slot] = moved


def _overflow(codec: Codec, batch: object, task_id: int) -> Message:
    """Send a batch in its own memory, because it has no slot or does not fit into it."""
    mapping, fd = map_file(_OVERFLOW_BYTES)
    view = np.frombuffer(mapping, np.uint8)
    writer = SlotWriter(view)
    try:
        header = codec.encode(batch, writer)
    except SlotFull:
        os.close(fd)
        raise TransportError(
            f"A batch is larger than the {len(mapping) >> 20} MiB that this worker can send. "
            f"{why_no_more(len(mapping), _OVERFLOW_BYTES)} Or use a smaller batch size."
        ) from None
    except BaseException:
        os.close(fd)
        raise
    os.ftruncate(fd, max(writer.used, 1))
    return Message(Kind.DONE, task_id, header, writer.used, fd=fd)


_PR_SET_PDEATHSIG = 1


def end_with(trainer_pid: int, trainer_fd: int, *, started_by_main_thread: bool) -> None:
    """Have this process killed when the training process ends, even if it is stuck in the user's code then.

    Linux can do that for a child, but watches the thread that started it, which may end before the process does. So use
    that only if it was the main thread; otherwise a thread of this process waits for the end.
    Test: tests/faults/test_trainer_killed.py
    """
    if started_by_main_thread and os.getppid() == trainer_pid:
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None and prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
            if os.getppid() != trainer_pid:  # it ended in between
                os.kill(os.getpid(), signal.SIGKILL)
            return
    # Where the limit on processes forbids a thread, the worker notices the end when its task is done.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=_follow, args=(trainer_fd,), name="feedline-end", daemon=True).start()


def _follow(trainer_fd: int) -> None:
    waiting = select.poll()
    waiting.register(trainer_fd, select.POLLIN)
    waiting.poll()
    os.kill(os.getpid(), signal.SIGKILL)
