"""The actor's side: one runner for each loader that has work for it. Ray calls its methods one after the other.

The training process has one call in flight per worker. So several loaders that share an actor take turns: Ray never
queues more than one task of each loader for an actor.
"""

from __future__ import annotations

import importlib
import math
import os
import pickle
import socket
import threading
import time
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from feedline.abc.framework import Framework
from feedline.abc.worker_spec import WorkerSpec
from feedline.memory.codec import Codec, SlotFull, SlotWriter
from feedline.memory.reading import Bytes
from feedline.types import Task, WorkerIdentity
from feedline.workers import session
from feedline.workers.failure import pack_failure
from feedline.workers.heap import Heap, heap_of_this_process, keep_heap_warm
from feedline.workers.portable.segments import BatchBytes, Outbox
from feedline.workers.portable.worker import ALIVE, Request, answer_to, packed
from feedline.workers.ray.store import SpecReader, writable
from feedline.workers.runner import Runner, StillReading

_IDLE_S = 600.0
"""Idle time after which an actor of a pool exits. Loaders report when they leave; killed ones cannot."""

_LEFT_S = 5.0
"""The same after the last loader has left. The next epoch, or another rank, may be about to use this actor."""

_LOOK_S = 0.5
"""How often an actor checks whether that time is over."""

_SLICE_S = 0.5
"""How long an actor reads the samples before those of a task until it reports that it does."""

_FIRST_BYTES = 64 << 20
"""First size of the buffer that a dataset is packed into; then four times as much. Only written pages take memory."""


@dataclass(frozen=True)
class PackedSpec:
    """The specification for all workers of a loader; the object store holds it once per node."""

    framework: tuple[str, str]
    """Its module and class: it is imported before the rest is unpickled."""
    header: bytes
    memory: Bytes
    """The arrays and tensors of the dataset."""

    def read(self) -> WorkerSpec:
        """Unpack it: arrays of the dataset are views of the object store, which all workers of the node share."""
        module, name = self.framework
        framework: Framework = getattr(importlib.import_module(module), name)()
        memory = writable(self.memory)
        spec: WorkerSpec = Codec(framework).decode(self.header, SpecReader(self.memory if memory is None else memory))
        return spec


@dataclass(frozen=True)
class Place:
    """Where an actor runs."""

    pid: int
    host: str
    machine: str
    """The result of `machine_id` there."""


class _StoreOutbox(Outbox):
    """Memory to make a batch in. Ray copies it into the object store when the call returns."""

    posted: Bytes | None = None

    def post(self, writer: SlotWriter, name: str) -> BatchBytes:
        self.posted = writer.view[: writer.used]
        return BatchBytes(writer.used)

    def take(self) -> Bytes | None:
        """Return the posted memory, once."""
        posted, self.posted = self.posted, None
        return posted


class _Seat:
    """The runner and buffers of one loader in this actor."""

    def __init__(self, spec: WorkerSpec, number: int, generation: int) -> None:
        seed = spec.base_seed + number + generation * spec.worker_count
        self.identity = WorkerIdentity(number, spec.worker_count, seed, spec.dataset)
        self.framework: Framework = spec.framework
        self.reads_since_s = math.inf
        """When the current task began; infinite while there is none."""
        self.runner = Runner(spec, self.identity, report_alive=self._report)
        self.codec = Codec(spec.framework)
        self.outbox = _StoreOutbox()

    def _report(self) -> None:
        if time.monotonic() - self.reads_since_s > _SLICE_S:
            raise StillReading


class RayWorker:
    """An actor. No user code runs before `open`, which returns any exception that such code raises.

    Args:
        is_shared: True if it belongs to a pool, and exits by itself when no loader needs it.
    """

    def __init__(self, is_shared: bool = False) -> None:
        self._loaders: set[str] = set()
        """The loaders that use this actor, or are about to."""
        self._seats: dict[str, _Seat] = {}
        self._last = ""
        """The loader of the last task."""
        self._asked_s = time.monotonic()
        keep_heap_warm()
        self._heap = Heap(None)
        """Returns the memory of an unusually large batch; from `open` on, so that it knows what the dataset holds."""
        if is_shared:
            threading.Thread(target=self._end_when_idle, name="feedline-idle", daemon=True).start()

    def _end_when_idle(self) -> None:
        while time.monotonic() - self._asked_s < (_IDLE_S if self._loaders else _LEFT_S):
            time.sleep(_LOOK_S)
        os._exit(0)

    def place(self, loader: str) -> Place:
        """Return where this actor runs. Ray answers as soon as it has placed the actor and started its process."""
        self._loaders.add(loader)
        self._asked_s = time.monotonic()
        return Place(os.getpid(), socket.gethostname(), machine_id())

    def open(self, loader: str, packed_spec: PackedSpec, number: int, generation: int) -> bytes | None:
        """Get ready to work for a loader, as its worker `number`; returns the packed exception if that fails."""
        failure: BaseException | None
        self._asked_s, self._last = math.inf, loader
        try:
            seat = self._seats[loader] = _Seat(packed_spec.read(), number, generation)
            failure = seat.runner.unready
        except Exception as exc:  # raised by the user's imports or unpickling
            failure = exc
        self._heap = heap_of_this_process()
        self._asked_s = time.monotonic()
        return None if failure is None else pack_failure(failure, f"in DataLoader worker process {number}")

    def work(self, loader: str, data: bytes) -> tuple[bytes, Bytes | None]:
        """Make a batch; returns the packed answer, and the bytes that it refers to, which Ray does not pickle.

        Returns `ALIVE` if the samples before it are still being read: call it again with the same data.
        """
        self._asked_s = math.inf  # until it is done, however long that takes
        seat = self._seats[loader]
        if loader != self._last:
            self._last = loader
            seat.framework.announce_worker(seat.identity)
        task: Task = pickle.loads(data)
        seat.reads_since_s = time.monotonic()
        try:
            answer = packed(answer_to(Request(task, ""), seat.runner, seat.codec, seat.outbox, seat.identity.id))
        except StillReading:
            answer = ALIVE
        seat.reads_since_s = math.inf
        self._heap.worked()
        self._asked_s = time.monotonic()
        return answer, seat.outbox.take()

    def leave(self, loader: str) -> None:
        """Forget a loader. An actor of a pool exits after the last one."""
        self._loaders.discard(loader)
        self._seats.pop(loader, None)
        self._asked_s = time.monotonic()


def machine_id() -> str:
    """Return an identifier of the machine; process ids and monotonic clocks are comparable only if it is the same."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()


def pack_spec(spec: WorkerSpec, cloudpickle: ModuleType) -> PackedSpec:
    """Pack a specification. Definitions of the main program go by value: actors do not import it."""
    kind = type(spec.framework)
    size = _FIRST_BYTES
    with session.by_value(cloudpickle) as override:
        while True:
            memory: Bytes = np.empty(size, np.uint8)
            writer = SlotWriter(memory, memory.__array_interface__["data"][0])
            try:
                header = Codec(spec.framework, override=override).encode_object(spec, writer)
            except SlotFull:
                size *= 4
                continue
            return PackedSpec((kind.__module__, kind.__qualname__), header, memory[: writer.used])
