"""How worker processes come to life, by start method.

fork: the child inherits the specification and the mapping of the arena; nothing is serialised. Its first act is to
close what belongs to other workers.

forkserver and spawn: the child is a fork of a bare server, or a new interpreter; it reads the specification from memory
that all workers share. They start side by side.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from feedline import openmp
from feedline.engines.processes.payload import Payload
from feedline.engines.processes.worker import Link, serve
from feedline.transport.arena import starting_workers
from feedline.types import WorkerSpec


def start_forked(context: Any, link: Link, spec: WorkerSpec, strangers: Iterable[Any]) -> BaseProcess:
    """Fork a worker. `strangers` are sockets it must not keep open."""
    limits = openmp.blas_limits()  # looked up here: a fork should do as little as possible before it is settled
    # Another thread that draws from numpy.random holds this lock without the GIL. A worker that was forked meanwhile
    # would wait for it for ever when it seeds its own generator. So it is this thread that holds it during the fork,
    # here and in the worker. Test: tests/faults/test_fork_safety.py
    numpy_lock: Any = np.random.mtrand.get_bit_generator().lock
    inherited = _Inherited(list(strangers), limits, numpy_lock)
    process: BaseProcess = context.Process(target=_forked, args=(link, spec, inherited), daemon=True)
    with starting_workers(), numpy_lock:
        process.start()
    return process


@dataclass(frozen=True)
class _Inherited:
    """What a forked worker has to put in order first."""

    strangers: list[Any]
    """Sockets that belong to other workers."""
    blas_limits: list[Any]
    numpy_lock: Any
    """Held by the thread that forked, which is the one that the worker has."""


def _forked(link: Link, spec: WorkerSpec, inherited: _Inherited) -> None:
    inherited.numpy_lock.release()
    for limit in inherited.blas_limits:
        limit.value = 1
    for sock in inherited.strangers:
        sock.close()
    gc.freeze()  # what was inherited is not garbage: looking through it would copy its pages, again and again
    serve(link, spec)


def start_fresh(context: Any, link: Link, payload: Payload) -> BaseProcess:
    """Start a worker that inherits nothing (spawn, forkserver)."""
    process: BaseProcess = context.Process(target=_fresh, args=(link, payload), daemon=True)
    process.start()
    return process


def _fresh(link: Link, payload: Payload) -> None:
    serve(link, payload.open(link.number))
