"""The actor's side. Ray calls its methods one after the other; each worker has one call in flight."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import pickle
import socket
import time
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from feedline.abc.framework import Framework
from feedline.abc.worker_spec import WorkerSpec
from feedline.memory.codec import Bytes, Codec, SlotFull, SlotWriter, Views
from feedline.types import Task, WorkerIdentity
from feedline.workers import session
from feedline.workers.failure import pack_failure
from feedline.workers.heap import Heap, heap_of_this_process, keep_heap_warm
from feedline.workers.portable.segments import Outbox
from feedline.workers.processes.messages import Kind, Message, packed
from feedline.workers.processes.worker import answers
from feedline.workers.runner import Runner, StillReading

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
        spec: WorkerSpec = Codec(framework).decode(self.header, SpecReader(self.memory))
        return spec


class SpecReader(Views):
    """The arrays of a dataset in the object store: read-only for NumPy, as Ray requires; writable for torch.

    torch has no read-only tensors. Every process maps the store for reading and writing, and all workers of a node see
    what one of them writes.
    """

    __slots__ = ()

    def __init__(self, view: Bytes) -> None:
        super().__init__(np.asarray(_Writable(view)) if view.nbytes else view)

    def take(self, start: int, size: int) -> tuple[Bytes, int]:
        view = self._view[start : start + size]
        view.flags.writeable = False
        return view, 0


class _Writable:
    """The memory of a read-only array, as a writable buffer for NumPy: every array over it keeps that array alive."""

    def __init__(self, array: Bytes) -> None:
        self._array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": array.shape, "typestr": "|u1", "data": (address, False)}


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

    def _post(self, header: bytes, writer: SlotWriter, task: Task) -> Message:
        self.posted = writer.view[: writer.used]
        return Message(Kind.DONE, task.id, header, writer.used)

    def take(self) -> Bytes | None:
        """Return the posted memory, once."""
        posted, self.posted = self.posted, None
        return posted


class RayWorker:
    """An actor. No user code runs before `open`, which returns any exception that such code raises."""

    _runner: Runner
    _codec: Codec

    def __init__(self) -> None:
        self._number = -1
        self._reads_since_s = math.inf
        """When the current task began; infinite while there is none."""
        self._outbox = _StoreOutbox("")
        keep_heap_warm()
        self._heap = Heap(None)
        """Returns the memory of an unusually large batch; from `open` on, so that it knows what the dataset holds."""

    def place(self) -> Place:
        """Return where this actor runs. Ray answers as soon as it has placed the actor and started its process."""
        return Place(os.getpid(), socket.gethostname(), machine_id())

    def open(self, packed_spec: PackedSpec, number: int, generation: int) -> bytes | None:
        """Get ready to work as worker `number`; returns the packed exception if that fails."""
        failure: BaseException | None
        self._number = number
        try:
            spec = packed_spec.read()
            seed = spec.base_seed + number + generation * spec.worker_count
            identity = WorkerIdentity(number, spec.worker_count, seed, spec.dataset)
            self._runner = Runner(spec, identity, report_alive=self._report)
            self._codec = Codec(spec.framework)
            failure = self._runner.unready
        except Exception as exc:  # raised by the user's imports or unpickling
            failure = exc
        self._heap = heap_of_this_process()
        return None if failure is None else pack_failure(failure, f"in DataLoader worker process {number}")

    def _report(self) -> None:
        if time.monotonic() - self._reads_since_s > _SLICE_S:
            raise StillReading

    def work(self, data: bytes) -> tuple[list[bytes], Bytes | None]:
        """Make a batch; returns the packed messages, and the bytes that they refer to, which Ray does not pickle.

        Returns no message if the samples before it are still being read: call it again with the same data.
        """
        task: Task = pickle.loads(data)
        self._reads_since_s = time.monotonic()
        messages: list[bytes] = []
        with contextlib.suppress(StillReading):
            found = answers(self._runner, self._codec, self._outbox, self._number, task)
            messages = [packed(message) for message in found]
        self._reads_since_s = math.inf
        if time.monotonic() >= self._heap.due_s:
            self._heap.worked()
        return messages, self._outbox.take()


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
            writer = SlotWriter(memory)
            try:
                header = Codec(spec.framework, override=override).encode_object(spec, writer)
            except SlotFull:
                size *= 4
                continue
            return PackedSpec((kind.__module__, kind.__qualname__), header, memory[: writer.used])
