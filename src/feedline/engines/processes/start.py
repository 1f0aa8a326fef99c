"""How worker processes come to life, by start method.

fork: the child inherits the specification and the mapping of the arena; nothing is serialised. Its first act is to
close what belongs to other workers. Before forking, OpenMP's idle threads are dismissed: they would not exist in the
child, and a parallel region there would wait for them for ever. They come back in the parent when needed.

forkserver: the server imports torch and the modules of the program once, before it forks anybody.

spawn: every worker is a new interpreter; they start side by side.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import sys
from collections.abc import Iterable
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from feedline.engines.processes.payload import Payload
from feedline.engines.processes.worker import Link, serve
from feedline.transport.arena import starting_workers
from feedline.types import WorkerSpec

_OMP_PAUSE_HARD = 2


def start_method(context: BaseContext | None) -> str:
    """Return the name of the start method that `context`, or the default, stands for."""
    method: str | None = (context or multiprocessing).get_start_method()
    return method or "fork"


def start_forked(context: Any, link: Link, spec: WorkerSpec, strangers: Iterable[Any]) -> BaseProcess:
    """Fork a worker. `strangers` are sockets it must not keep open."""
    process: BaseProcess = context.Process(target=_forked, args=(link, spec, list(strangers)), daemon=True)
    with starting_workers():
        process.start()
    return process


def _forked(link: Link, spec: WorkerSpec, strangers: list[Any]) -> None:
    for sock in strangers:
        sock.close()
    gc.freeze()  # what was inherited is not garbage: looking through it would copy its pages, again and again
    serve(link, spec)


def start_fresh(context: Any, link: Link, payload: Payload) -> BaseProcess:
    """Start a worker that inherits nothing (spawn, forkserver)."""
    process: BaseProcess = context.Process(target=_fresh, args=(link, payload), daemon=True)
    process.start()
    return process


def _fresh(link: Link, payload: Payload) -> None:
    serve(link, payload.open())


def dismiss_openmp_threads() -> None:
    """End the idle threads of GNU OpenMP in this thread's pool, so that a fork does not inherit a dead pool.

    Other OpenMP libraries look after forks themselves.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    for path in paths:
        pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
        if pause is not None:
            pause(_OMP_PAUSE_HARD)


def preload_in_forkserver(spec: WorkerSpec) -> None:
    """Have the fork server import, once, what every worker would import for itself.

    That is feedline's worker, the modules that the dataset and the functions come from, and the modules that the main
    program has imported by name. A server that runs already is left as it is.
    """
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        return
    names = dict.fromkeys(["feedline.engines.processes.start", type(spec.framework).__module__])
    for part in (spec.dataset, spec.collate, spec.init):
        names[getattr(part, "__module__", None) or type(part).__module__] = None
        names[type(part).__module__] = None
    for value in list(vars(sys.modules["__main__"]).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            names[name] = None
    wanted = [name for name in names if name not in ("__main__", "__mp_main__", "builtins") and name in sys.modules]
    server.set_forkserver_preload([*server._preload_modules, *wanted])
