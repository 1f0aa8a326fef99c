"""Start a worker process, by start method.

fork: the child inherits the specification and the mapping of the arena; nothing is serialised. The fork happens while
no other thread holds a lock, and the child first cleans up what it inherited: locks, threads of libraries, connections
of other workers.

forkserver and spawn: the child is a fork of a bare server, or a new interpreter, and reads a serialised specification.
Workers start in parallel.
"""

from __future__ import annotations

import gc
import os
from ctypes import c_int
from multiprocessing.process import BaseProcess
from typing import Any

from feedline.abc.worker_spec import WorkerSpec
from feedline.workers import lifetime, session
from feedline.workers.fork_safety import quiesce_threads, reset_in_child
from feedline.workers.processes import worker
from feedline.workers.processes.channel import End, passed_on


# Any: a multiprocessing context, whose `Process` has no type.
def start_forked(context: Any, link: worker.Link, own: End, spec: WorkerSpec, blas_limits: list[c_int]) -> BaseProcess:
    """Fork a worker, which keeps `own`, its end of the connection. It sets each of `blas_limits` to 1."""
    process: BaseProcess = context.Process(target=_forked, args=(link, spec, blas_limits), daemon=True)
    _check_descriptors()
    with quiesce_threads(), passed_on(own):
        process.start()
    return process


def _check_descriptors() -> None:
    """Raise OSError unless two pipes can be opened: Python's own start leaks the first if it gets no second one.

    Test: tests/workers/processes/test_engine.py::test_a_start_that_finds_too_few_descriptors_leaks_none
    """
    found: list[int] = []
    try:
        for _ in range(2):
            found += os.pipe()
    finally:
        for fd in found:
            os.close(fd)


def _forked(link: worker.Link, spec: WorkerSpec, blas_limits: list[c_int]) -> None:
    reset_in_child(spec.dataset)
    for limit in blas_limits:
        limit.value = 1
    gc.freeze()  # inherited objects are not garbage: each collection that visits them would copy their pages
    worker.serve(link, spec)


def start_fresh(context: Any, link: worker.Link, packed: worker.PackedSpec) -> BaseProcess:
    """Start a worker that inherits nothing (spawn, forkserver)."""
    name = lifetime.process_name(link.number)
    process: BaseProcess = context.Process(target=worker.serve_fresh, args=(link, packed), name=name, daemon=True)
    with session.without_file():
        process.start()
    return process
