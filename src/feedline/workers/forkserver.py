"""Python's fork server, with the program's modules imported before it forks a worker.

A forked worker must import what the program and its dataset import. It inherits the modules that the server has
imported, so an epoch starts about as fast as with fork. The server imports modules, but does not run the main program.
Each worker runs that code itself, because all workers would share a file or a CUDA context that it opens in the server.

The server is a new interpreter. Python passes it the names of modules, but up to 3.13 not the `sys.path` to search. If
the program has inserted folders there, feedline itself may be in one of them. So two environment variables are set
while the server starts: PYTHONPATH, with a folder that contains only `feedline_preload`, which the server imports by
name; and one with the module names, the path and the previous PYTHONPATH. The server removes both.

The server writes the names of the modules it has imported into an anonymous file of the training process.
`Preloading.report` reads it and logs what is missing.
Test: tests/workers/test_forkserver.py
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import logging
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from feedline.system import openmp, socket_folder
from feedline.system.failures import words
from feedline.workers import session

logger = logging.getLogger("feedline")

_VARIABLE = "FEEDLINE_FORKSERVER"
_PRELOADED = "feedline_preload"
_FOLDER = str(Path(__file__).parent / "server_path")


@dataclass(frozen=True)
class _Server:
    """A fork server, and the modules it has imported."""

    pid: int
    loaded: frozenset[str] = frozenset()
    failed: dict[str, str] = field(default_factory=dict)
    """Modules that it could not import, with the reasons."""


_last: _Server | None = None
"""The last server that imported modules for this process."""
_logged: set[tuple[int, str]] = set()
"""Modules that were reported missing, by server."""


class Preloading:
    """The modules that a fork server should import.

    Args:
        wanted: their names.
        pid: the server's process id.
        was_running: True if the server was already running.
        file: receives the server's report; None if the server was already running, or cannot report.
    """

    def __init__(self, wanted: list[str], pid: int, was_running: bool, file: BinaryIO | None) -> None:
        self._wanted = wanted
        self._pid = pid
        self._was_running = was_running
        self._file = file
        if file is not None:
            weakref.finalize(self, file.close)  # also if no worker could be started, and `report` is never called

    def report(self) -> None:
        """Log the modules that every worker has to import itself.

        Call it after a worker was started: by then the server has imported what it could.
        """
        global _last
        if not hasattr(os, "memfd_create"):
            return  # the server cannot report
        if self._file is not None:
            with self._file as file:
                file.seek(0)
                answer = file.read()
            if answer:
                found = json.loads(answer)
                _last = _Server(self._pid, frozenset(found["loaded"]), found["failed"])
            self._file = None
        server = _last if _last is not None and _last.pid == self._pid else _Server(self._pid)
        missing = [name for name in self._wanted if name not in server.loaded and (self._pid, name) not in _logged]
        if not missing:
            return
        _logged.update((self._pid, name) for name in missing)
        logger.warning("%s", self._message(server, missing))

    def _message(self, server: _Server, missing: list[str]) -> str:
        reasons = [f"{name} ({server.failed[name]})" for name in missing if name in server.failed]
        if reasons:
            why, advice = f" could not import {', '.join(reasons)}.", "Make it importable outside the main program."
        elif server.loaded:
            why = f" was started before the program imported {', '.join(missing)}."
            advice = "Import them before the first loader is iterated over."
        elif self._was_running:
            why = " was not started by feedline, and has imported none of the program's modules."
            advice = "Iterate over a loader before other code uses the start method 'forkserver'."
        else:
            why = " has imported none of the program's modules: it did not find feedline."
            advice = "Install feedline, or run Python without the options -I and -E."
        return (
            f"The fork server{why} Every worker has to import them, which delays the first batch of each epoch. "
            f"{advice}"
        )


def start(worker_module: str, values: Iterable[object]) -> Preloading:
    """Start the fork server, if none is running. It imports the modules in the background.

    A server that is already running is not changed: other code may use it.

    Args:
        worker_module: feedline's own module that workers run.
        values: objects that are sent to workers, which need their modules.
    """
    from multiprocessing import forkserver  # not on Windows

    server: Any = vars(forkserver)["_forkserver"]
    new = [name for name in (_PRELOADED, __name__) if name not in server._preload_modules]
    if new:
        server.set_forkserver_preload([*server._preload_modules, *new])
    names = dict.fromkeys([*_imports_of(sys.modules["__main__"]), worker_module, *_modules_of(values)])
    wanted = [name for name in names if name not in ("__main__", "__mp_main__") and name in sys.modules]
    path = [os.fspath(entry) for entry in sys.path]  # some programs put a Path there
    before, python_path = server._forkserver_pid, os.environ.get("PYTHONPATH")
    file = os.fdopen(os.memfd_create("feedline-preload"), "r+b") if hasattr(os, "memfd_create") else None
    message = {
        "trainer": os.getpid(),
        "path": path,
        "modules": wanted,
        "python_path": python_path,
        "answer": None if file is None else f"/proc/{os.getpid()}/fd/{file.fileno()}",
    }
    os.environ[_VARIABLE] = json.dumps(message)
    os.environ["PYTHONPATH"] = os.pathsep.join([_FOLDER] if python_path is None else [_FOLDER, python_path])
    try:
        with session.without_file():
            socket_folder.use_short_paths()
            server.ensure_running()
    except BaseException:
        if file is not None:
            file.close()
        raise
    finally:
        del os.environ[_VARIABLE]
        _restore_python_path(python_path)
    was_running = server._forkserver_pid == before
    if was_running and file is not None:
        file.close()
    return Preloading(wanted, server._forkserver_pid, was_running, None if was_running else file)


def _restore_python_path(before: str | None) -> None:
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before


def _modules_of(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        for kind in (value, type(value)):
            name = getattr(kind, "__module__", None)
            if isinstance(name, str):
                yield name


def _imports_of(main: ModuleType) -> Iterator[str]:
    """Yield the modules that a worker imports when it runs the main program: those it names, in order, and others.

    The others define objects that the program has imported: many packages load a submodule only when one of its names
    is used, and workers use it.
    """
    if getattr(main, "__file__", None):  # otherwise it is an interactive session, and workers run none of it
        with contextlib.suppress(OSError, TypeError, SyntaxError):
            yield from _named_in(ast.parse(inspect.getsource(main)), getattr(main.__spec__, "parent", None))
    for value in list(vars(main).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name


def _named_in(tree: ast.AST, package: str | None) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            source = importlib.util.resolve_name(source, package) if package or not node.level else ""
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.expr)) and not _is_guard(node):
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _is_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _import_in_server() -> None:
    """Import the modules that the training process has listed. Failures are repeated, and reported, in the workers."""
    message = json.loads(os.environ.pop(_VARIABLE))
    _restore_python_path(message["python_path"])
    if message["trainer"] != os.getppid():
        return  # another program that was started at the same moment
    before, sys.path[:] = sys.path[:], message["path"]
    failed: dict[str, str] = {}
    for name in message["modules"]:
        try:
            importlib.import_module(name)
        except BaseException as exc:  # SystemExit as well: the server must survive
            failed[name] = f"{type(exc).__name__}: {words(exc)}"
    sys.path[:] = before  # every worker receives the path of the moment it starts
    openmp.prepare_fork()  # those of a module that has computed something
    if message["answer"] is not None:
        with contextlib.suppress(OSError), open(message["answer"], "w") as file:  # the training process may have ended
            json.dump({"loaded": sorted(sys.modules), "failed": failed}, file)
    gc.collect()
    gc.freeze()  # a collection in a worker would otherwise copy the pages


if _VARIABLE in os.environ:
    _import_in_server()
