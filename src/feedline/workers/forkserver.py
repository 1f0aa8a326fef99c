"""Python's fork server, with the program's modules imported before it forks a worker.

A forked worker must import what the program and its dataset import. It inherits the modules that the server has
imported, so an epoch starts about as fast as with fork. The server imports modules, but does not run the main program.
Each worker runs that code itself, because all workers would share a file or a CUDA context that it opens in the server.

The server is a new interpreter. Python passes it the names of modules, but up to 3.13 not the `sys.path` to search. If
the program has inserted folders there, feedline itself may be in one of them. So two environment variables are set
while the server starts: PYTHONPATH, with a folder that contains only `feedline_preload`, which the server imports by
name; and one with the module names, the path and the previous PYTHONPATH. The server removes both.

The server itself logs the modules that it cannot import: every worker has to import them again.
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
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from feedline.system import openmp, socket_folder
from feedline.system.failures import words
from feedline.workers import session

logger = logging.getLogger("feedline")

_VARIABLE = "FEEDLINE_FORKSERVER"
_PRELOADED = "feedline_preload"
_FOLDER = str(Path(__file__).parent / "server_path")


def start(worker_module: str, values: Iterable[object]) -> None:
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
    python_path = os.environ.get("PYTHONPATH")
    message = {"trainer": os.getpid(), "path": path, "modules": wanted, "python_path": python_path}
    os.environ[_VARIABLE] = json.dumps(message)
    os.environ["PYTHONPATH"] = os.pathsep.join([_FOLDER] if python_path is None else [_FOLDER, python_path])
    try:
        with session.without_file():
            socket_folder.use_short_paths()
            server.ensure_running()
    finally:
        del os.environ[_VARIABLE]
        _restore_python_path(python_path)


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
    """Import the modules that the training process has listed. Failures are repeated in the workers."""
    message = json.loads(os.environ.pop(_VARIABLE))
    _restore_python_path(message["python_path"])
    if message["trainer"] != os.getppid():
        return  # another program that was started at the same moment
    before, sys.path[:] = sys.path[:], message["path"]
    failed: list[str] = []
    for name in message["modules"]:
        try:
            importlib.import_module(name)
        except BaseException as exc:  # SystemExit as well: the server must survive
            failed.append(f"{name} ({type(exc).__name__}: {words(exc)})")
    sys.path[:] = before  # every worker receives the path of the moment it starts
    openmp.prepare_fork()  # those of a module that has computed something
    if failed:
        logger.warning(
            "The fork server could not import %s. Every worker has to import that, which delays the first batch of "
            "each epoch. Make it importable outside the main program.",
            ", ".join(failed),
        )
    gc.collect()
    gc.freeze()  # a collection in a worker would otherwise copy the pages


if _VARIABLE in os.environ:
    _import_in_server()
