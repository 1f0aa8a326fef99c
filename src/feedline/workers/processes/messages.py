"""Messages between the training process and a worker.

One message is one packet of a Unix socket pair (SOCK_SEQPACKET): it arrives whole or not at all, so a worker that is
killed while sending leaves no partial message. A body too long for a packet travels in a `memfd` whose descriptor goes
along with the packet. A small batch without a slot travels in the message itself. Short tasks travel several to a
packet: each is a message, with its length in the field where answers have their time.
"""

from __future__ import annotations

import array
import os
import pickle
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from feedline.errors import TooManyOpenFiles
from feedline.memory.sparse import create_memfd
from feedline.types import NO_TIMES, TIMES, Draw, IndexBlock, Task
from feedline.workers.failure import pack_failure

_PACKET_BYTES = 48 << 10
"""The longest body sent in a packet. Linux allows at least 200 KB per socket by default, for all waiting packets."""

_NO_TIMES = TIMES.pack(*NO_TIMES)
_HEAD = struct.Struct(f"<BBQQQ{TIMES.size}s")
_LONGEST = _PACKET_BYTES + _HEAD.size
_ANCILLARY = socket.CMSG_SPACE(array.array("i").itemsize)

# Plain numbers: combining the socket module's enum members costs more than the system call they are for.
_AT_ONCE = int(socket.MSG_DONTWAIT)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_CLOSE_ON_EXEC_AT_ONCE = _CLOSE_ON_EXEC | _AT_ONCE
_PEEK = int(socket.MSG_PEEK) | _AT_ONCE
_CONTROL_CUT_OFF = int(socket.MSG_CTRUNC)


class Kind(IntEnum):
    """The kind of a message."""

    TASK = 1
    DONE = 2
    FAILED = 3
    ENDED = 4
    NOTES = 5
    """What the worker reports besides the batch, which follows."""
    UNREADY = 6
    """The worker could not get ready, and exits."""
    ALIVE = 7
    """The worker got through its start, where nothing inherited by fork has blocked it; or it is reading the samples
    before its task, in a stream that it resumes."""
    READY = 8
    """The worker is ready to work."""
    EMPTY = 9
    """All samples of a batch were left out."""


_KINDS = {int(kind): kind for kind in Kind}


@dataclass(slots=True)
class Message:
    """One packet."""

    kind: Kind
    task_id: int
    body: bytes
    used: int = 0
    """DONE: size of the batch in bytes: in the slot, in the memory of `fd`, or else at the end of the body."""
    busy_ns: int = 0
    """DONE: how long the worker took. TASK: the length of the body; more tasks may follow behind it."""
    fd: int = -1
    """DONE: memory that holds the batch instead of the slot."""
    times: bytes = _NO_TIMES
    """DONE: as in `Result`."""


def send(sock: socket.socket, message: Message, *, block: bool) -> None:
    """Send a message; takes ownership of `message.fd`.

    Raises:
        BlockingIOError: `block` is False and the other side has too many packets waiting. You can send the message
            again: it still owns its descriptor.
        BrokenPipeError, ConnectionResetError: the other side is gone.
    """
    fd = message.fd
    body = message.body
    long = len(body) > _PACKET_BYTES
    try:
        if long:
            if fd >= 0:
                raise ValueError("a message has either a long body or memory of its own")
            fd = create_memfd(len(body))
            _write_all(fd, body)
            body = len(body).to_bytes(8, "little")
        head = _HEAD.pack(message.kind, long, message.task_id, message.used, message.busy_ns, message.times)
        flags = 0 if block else _AT_ONCE
        if fd < 0:
            sock.send(head + body, flags)
        else:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            sock.sendmsg([head, body], rights, flags)
    except BlockingIOError:
        if long:
            os.close(fd)
        raise
    except BaseException:
        if fd >= 0:
            os.close(fd)
        raise
    if fd >= 0:
        os.close(fd)


def _write_all(fd: int, body: bytes) -> None:
    view = memoryview(body)
    offset = 0
    while offset < len(view):
        offset += os.pwrite(fd, view[offset : offset + (1 << 30)], offset)


def _read_all(fd: int, size: int) -> bytes:
    body = bytearray()
    while len(body) < size:
        body += os.pread(fd, min(size - len(body), 1 << 30), len(body))
    return bytes(body)


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
    kind, is_long, task_id, used, busy_ns, times = _HEAD.unpack_from(data)
    if flags & _CONTROL_CUT_OFF:
        failure = TooManyOpenFiles("taking over the memory of a batch")
        return Message(Kind.FAILED, task_id, pack_failure(failure, "in the process that receives it"))
    body = data[_HEAD.size :]
    fd = -1
    if ancillary:
        for level, type_, rights in ancillary:
            if level == socket.SOL_SOCKET and type_ == socket.SCM_RIGHTS:
                fd = array.array("i", rights[:4])[0]
        if is_long:
            body = _read_all(fd, int.from_bytes(body, "little"))
            os.close(fd)
            fd = -1
    return Message(_KINDS[kind], task_id, body, used, busy_ns, fd, times)


def waiting_tasks(sock: socket.socket) -> list[Message]:
    """Return the tasks of the next waiting message without taking it; none if there are none."""
    try:
        data = sock.recv(_LONGEST, _PEEK)
    except BlockingIOError:
        return []
    if len(data) < _HEAD.size:
        return []
    kind, is_long, task_id, used, busy_ns, _ = _HEAD.unpack_from(data)
    if kind != Kind.TASK or is_long:
        return []
    return apart(Message(Kind.TASK, task_id, data[_HEAD.size :], used, busy_ns))


_BLOCK_HEAD = struct.Struct("<BqQqq")
"""A task whose indices are an `IndexBlock`: a mark, the epoch and the draw; the indices follow. Any other task is
pickled."""


def task_message(task: Task) -> Message:
    """Put a task into a message."""
    indices, draw = task.indices, task.draw
    special = task.shared_seed is not None or task.resume is not None or task.snapshot or bool(task.skip)
    if type(indices) is IndexBlock and not special:
        body = _BLOCK_HEAD.pack(1, task.epoch, draw.key, draw.first, draw.stride) + indices.array.tobytes()
    else:
        numbers = (draw.key, draw.first, draw.stride)
        rest = (task.resume, task.snapshot, task.skip)
        body = b"\0" + pickle.dumps((indices, task.epoch, task.shared_seed, numbers, *rest), 5)
    return Message(Kind.TASK, task.id, body, task.slot + 1, len(body))


def joined(messages: list[Message]) -> Message | None:
    """Join messages of tasks into one, which `apart` splits again; None if that would be too long for a packet."""
    first = messages[0]
    parts = [first.body]
    for message in messages[1:]:
        parts.append(_HEAD.pack(message.kind, 0, message.task_id, message.used, message.busy_ns, _NO_TIMES))
        parts.append(message.body)
    body = b"".join(parts)
    return None if len(body) > _PACKET_BYTES else Message(Kind.TASK, first.task_id, body, first.used, first.busy_ns)


def apart(message: Message) -> list[Message]:
    """Split a message from a packet into messages of single tasks."""
    body, end = message.body, message.busy_ns
    if end == len(body) or message.kind is not Kind.TASK:
        return [message]
    messages = [Message(Kind.TASK, message.task_id, body[:end], message.used, end)]
    while end < len(body):
        _, _, task_id, used, size, _ = _HEAD.unpack_from(body, end)
        start = end + _HEAD.size
        end = start + size
        messages.append(Message(Kind.TASK, task_id, body[start:end], used, size))
    return messages


def read_task(message: Message) -> Task:
    """Take a task out of a message."""
    body = message.body
    slot = message.used - 1
    if body[0] == 1:
        _, epoch, key, first, stride = _BLOCK_HEAD.unpack_from(body)
        indices = np.frombuffer(bytearray(body), np.int64, offset=_BLOCK_HEAD.size)  # writable, as torch requires
        return Task(message.task_id, IndexBlock(indices), slot, epoch, draw=Draw(key, first, stride))
    indices, epoch, shared_seed, numbers, *rest = pickle.loads(memoryview(body)[1:])
    return Task(message.task_id, indices, slot, epoch, shared_seed, Draw(*numbers), *rest)
