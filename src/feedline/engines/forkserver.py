"""Python's fork server, told what to import before it forks anybody.

Workers that it forks have to import what the program and its dataset import. What the server has imported they find
done: an epoch then starts about as fast as with fork. The server imports modules, and does not run the main program,
whose code each worker runs for itself: a file or a CUDA context that it opens is not to be shared by all of them.

The server is a new interpreter, and Python gives it names of modules, but up to 3.13 not the path to look for them. So
names and path lie in an environment variable while the server is started, and this module, imported there, reads it.
Test: tests/engines/test_forkserver.py
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from feedline.engines import session
from feedline.system import openmp

_VARIABLE = "FEEDLINE_FORKSERVER"


# Any: a server of multiprocessing's, whose attributes are its own; a dataset is whatever its user makes of it.
def start(worker_module: str, values: Iterable[Any]) -> None:
    """Start the fork server, if none runs. It imports what follows by itself, while this process goes on.

    A server that runs already is left as it is: others may use it.

    Args:
        worker_module: feedline's own module that workers run.
        values: objects that are sent to workers, whose modules they need.
    """
    from multiprocessing import forkserver  # not on Windows

    server: Any = vars(forkserver)["_forkserver"]
    if __name__ not in server._preload_modules:
        server.set_forkserver_preload([*server._preload_modules, __name__])
    names = dict.fromkeys([*_imports_of(sys.modules["__main__"]), worker_module, *_modules_of(values)])
    wanted = [name for name in names if name not in ("__main__", "__mp_main__") and name in sys.modules]
    path = [os.fspath(entry) for entry in sys.path]  # some put a Path there
    os.environ[_VARIABLE] = json.dumps({"trainer": os.getpid(), "path": path, "modules": wanted})
    try:
        with session.without_file():
            server.ensure_running()
    finally:
        del os.environ[_VARIABLE]


def _modules_of(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        for kind in (value, type(value)):
            name = getattr(kind, "__module__", None)
            if isinstance(name, str):
                yield name


def _imports_of(main: ModuleType) -> Iterator[str]:
    """Yield the modules that a worker imports when it runs the main program: those that it names, in order, and more.

    Many a package imports what a name stands for only when it is asked for it, and workers ask.
    """
    if getattr(main, "__file__", None):  # otherwise a session, of which workers run nothing
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
    """Import what the training process has asked for. What fails here fails again in a worker, which can tell of it."""
    told = json.loads(os.environ.pop(_VARIABLE))
    if told["trainer"] != os.getppid():
        return  # a program that was started in the same moment
    before, sys.path[:] = sys.path[:], told["path"]
    for name in told["modules"]:
        try:
            importlib.import_module(name)
        except BaseException:  # SystemExit as well: the server has to live
            continue
    sys.path[:] = before  # every worker is told the path of its own time
    openmp.dismiss_idle_threads()  # of a module that has computed something
    gc.collect()
    gc.freeze()  # looking through it in a worker would copy its pages


if _VARIABLE in os.environ:
    _import_in_server()
