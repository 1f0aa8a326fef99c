"""A worker's connection to the training process on Linux: a socket, and the arena.

The worker ends when its socket closes or when the training process is gone, whichever it notices first. It watches that
process through a descriptor (`pidfd`), because other children of the trainer may hold copies of the socket and keep it
open.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import select
import signal
import socket
import threading
from dataclasses import dataclass
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.errors import TransportError
from feedline.memory.codec import SMALL_BYTES, Bytes, Codec, MessageWriter, SlotFull, SlotWriter
from feedline.memory.sparse import advise_huge_pages, map_again, map_file, why_no_more
from feedline.types import Task
from feedline.workers.heap import Heap
from feedline.workers.processes.messages import Kind, Message, read_task
from feedline.workers.processes.packets import receive, send, set_receive_timeout, waiting_tasks
from feedline.workers.processes.worker import BatchMemory, Link

if TYPE_CHECKING:
    from feedline.memory.arena import Arena

STACK_SIGNAL = signal.SIGRTMAX - 2
"""The signal on which a worker writes its stacks, in C, even if it is stuck. Hardly any program uses it."""

_OVERFLOW_BYTES = 64 << 30
"""Address space for a batch that does not fit its slot; only the part that is written takes memory."""

_LOOK_AROUND_S = 0.2
"""How often an idle worker checks that the training process lives. Usually the socket shows its end at once."""


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
        while True:
            try:
                return receive(self.sock, block=True)
            except BlockingIOError:
                if self._end.poll(0):
                    return None
                heap.rested()

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
        return SlotWriter(view, address, None if self._is_advised else self._advise)

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

    def part_with(self, task: Task, address: int, used: int) -> None:
        if task.slot >= 0:
            _make_private(address, used)
            moved = map_again(self._descriptor, self.slot_bytes, offset=task.slot * self.slot_bytes)
            self._moved[task.slot] = moved


def _overflow(codec: Codec, batch: object, task_id: int) -> Message:
    """Send a batch in its own memory, because it has no slot or does not fit into it."""
    mapping, fd = map_file(_OVERFLOW_BYTES)
    view = np.frombuffer(mapping, np.uint8)
    writer = SlotWriter(view, view.__array_interface__["data"][0])
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


_MAP_FIXED = 0x10


def _make_private(address: int, size: int) -> None:
    """Replace shared memory of this process with a private copy at the same addresses."""
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    contents = ctypes.string_at(address, size)
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    if call(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)} while keeping a batch that the dataset or collate function refers to")
    ctypes.memmove(address, contents, size)


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
