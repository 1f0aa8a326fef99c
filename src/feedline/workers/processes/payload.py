"""The worker specification, serialised once for all workers that do not inherit it by fork.

The pickle and the dataset's NumPy and torch buffers lie in one `memfd`. Every worker maps it privately: they all read
the same pages, and what one of them writes stays private. Objects meant to be shared between processes (locks, values,
queues, tensors in shared memory) are sent by their own rules; the descriptors that these rules need are collected while
pickling and passed to every worker.
"""

from __future__ import annotations

import fcntl
import importlib
import os
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import Any

import numpy as np

from feedline.abc.framework import Framework
from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import TransportError
from feedline.memory.codec import Codec, SlotFull, SlotWriter, Views
from feedline.memory.sparse import map_again, map_file, why_no_more
from feedline.workers import session

_MOST_BYTES = 1 << 40


class Payload:
    """A pickled `WorkerSpec` that travels to workers as a few descriptors."""

    def __init__(self, spec: WorkerSpec) -> None:
        kind = type(spec.framework)
        self._framework = (kind.__module__, kind.__qualname__)  # by name: a worker imports it when it is its turn
        mapping, self._fd = map_file(_MOST_BYTES)
        view = np.frombuffer(mapping, np.uint8)
        writer = SlotWriter(view)
        collector = _Descriptors()
        self._inherited = collector.fds
        previous = context.get_spawning_popen()
        context.set_spawning_popen(collector)  # type: ignore[arg-type]  # plays the part of a process
        try:
            with session.by_value() as override:
                self._header = Codec(spec.framework, _extra_reducers(), override).encode_object(spec, writer)
        except SlotFull:
            self.close()
            raise TransportError(
                f"The dataset is larger than the {len(mapping) >> 20} MiB that can be sent to workers. "
                f"{why_no_more(len(mapping), _MOST_BYTES)} Or use forked workers or threads: nothing is sent to them."
            ) from None
        except BaseException:
            self.close()
            raise
        finally:
            context.set_spawning_popen(previous)
        self._size = max(writer.used, 1)
        os.ftruncate(self._fd, self._size)

    def close(self) -> None:
        """Close the descriptors; workers that have started keep theirs."""
        for fd in {self._fd, *self._inherited} - {-1}:
            os.close(fd)
        self._fd = -1
        self._inherited.clear()

    def __getstate__(self) -> dict[str, object]:
        return {
            **self.__dict__,
            "_fd": reduction.DupFd(self._fd),
            "_inherited": [reduction.DupFd(fd) for fd in self._inherited],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fd = state["_fd"].detach()
        self._inherited = [dup.detach() for dup in state["_inherited"]]

    def open(self, worker: int) -> WorkerSpec:
        """Read the specification, once, in a worker. This imports the dataset's modules and torch.

        Only as many workers as there are cores do so at a time, lowest numbers first: if all did, the first batch
        would come as late as the last worker. The lock is released when the process that holds it ends.
        """
        _inherited[:] = self._inherited
        mapping = map_again(self._fd, self._size, private=True)
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, worker % len(os.sched_getaffinity(0)))
        module, name = self._framework
        framework: Framework = getattr(importlib.import_module(module), name)()
        spec: WorkerSpec = Codec(framework).decode(self._header, Views(np.frombuffer(mapping, np.uint8)))
        os.close(self._fd)  # and with it the lock
        self._fd = -1
        return spec


def _extra_reducers() -> dict[type, Callable[[object], object]]:
    """Return the reducers that multiprocessing and torch have registered for objects that processes share."""
    reducers: dict[type, Callable[[object], object]] = vars(reduction.ForkingPickler)["_extra_reducers"]
    return reducers


_inherited: list[int] = []


class _Descriptors:
    """Stands in for the starting process during pickling: keeps copies of the descriptors that it would need.

    A worker that is replaced later needs them too, and by then the program may have closed its own.
    """

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    def DupFd(self, index: int) -> _InheritedFd:  # noqa: N802  the name multiprocessing looks up
        return _InheritedFd(index)


class _InheritedFd:
    """A descriptor, by its position in the list that came with the payload."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        return os.dup(_inherited[self.index])
