"""Packets: messages over a Unix socket pair (SOCK_SEQPACKET), which only Linux has in this form.

A packet arrives whole or not at all, so a worker that is killed while sending leaves no partial message. A body too
long for a packet travels in a `memfd` whose descriptor goes along with the packet.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from dataclasses import replace

from feedline.errors import TooManyOpenFiles
from feedline.memory.sparse import create_memfd
from feedline.workers.failure import pack_failure
from feedline.workers.processes.messages import HEAD, PACKET_BYTES, Kind, Message, apart, packed, unpacked

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
