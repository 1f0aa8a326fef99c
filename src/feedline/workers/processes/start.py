"""Start worker processes, by start method.

fork: the child inherits the specification and the mapping of the arena; nothing is serialised. The fork happens while
no other thread holds a lock, and the child first cleans up what it inherited: locks, threads of libraries, sockets of
other workers.

forkserver and spawn: the child is a fork of a bare server, or a new interpreter. It reads the specification from memory
that all workers share. Workers start in parallel.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from typing import Any

from feedline.abc.worker_spec import WorkerSpec
from feedline.workers import session
from feedline.workers.fork_safety import quiesce_threads, reset_in_child
from feedline.workers.processes.payload import Payload
from feedline.workers.processes.worker import Link, say_unready, serve


def start_forked(
    context: Any, link: Link, spec: WorkerSpec, strangers: Iterable[object], blas_limits: list[object]
) -> BaseProcess:
    """Fork a worker. It closes the sockets in `strangers`, and sets each of `blas_limits` to 1."""
    process: BaseProcess = context.Process(target=_forked, args=(link, spec, list(strangers), blas_limits), daemon=True)
    with quiesce_threads():
        process.start()
    return process


def _forked(link: Link, spec: WorkerSpec, strangers: list[Any], blas_limits: list[Any]) -> None:
    reset_in_child(spec.dataset)
    for limit in blas_limits:
        limit.value = 1
    for sock in strangers:
        sock.close()
    gc.freeze()  # inherited objects are not garbage: each collection that visits them would copy their pages
    serve(link, spec)


def start_fresh(context: Any, link: Link, payload: Payload, name: str) -> BaseProcess:
    """Start a worker that inherits nothing (spawn, forkserver)."""
    process: BaseProcess = context.Process(target=_fresh, args=(link, payload), name=name, daemon=True)
    with session.without_file():
        process.start()
    return process


def _fresh(link: Link, payload: Payload) -> None:
    try:
        spec = payload.open(link.number)
    except Exception as exc:  # the user's own, from __setstate__ or an import
        not_found = session.not_found(exc) if isinstance(exc, AttributeError) else None
        return say_unready(link, not_found or exc)
    serve(link, spec)
