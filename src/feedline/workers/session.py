"""Classes and functions of an interactive session: a notebook, the Python prompt, `python -c`, a program from a pipe.

Workers that are not forked import the main program to find its definitions. A session has no file and cannot be
imported. So its classes and functions are sent by value, with cloudpickle; without that, an error names alternatives.
Test: tests/workers/test_session.py
"""

from __future__ import annotations

import io
import multiprocessing
import multiprocessing.process
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

from feedline.errors import MissingExtra, NotPicklable
from feedline.system.optional import require

_EXTRA = "notebook"


@contextmanager
def by_value(cloudpickle: ModuleType | None = None) -> Iterator[Callable[[object], object] | None]:
    """Yield a `reducer_override` that pickles an object with the session's definitions; None if workers can import it.

    Pickle inside the block. Classes and functions are then the same, and share the same global names, in everything
    that one worker gets.

    Args:
        cloudpickle: the module, for workers that never import the main program.
    """
    if cloudpickle is None and can_import_main():
        yield None
        return
    cloudpickle = cloudpickle or _cloudpickle()
    if cloudpickle is None:
        yield _refuse
        return
    # Not used for writing: it takes objects apart, and remembers whose global names it has seen.
    pickler = cloudpickle.Pickler(io.BytesIO(), 5)
    names = vars(sys.modules["__main__"])
    pickler.globals_ref[id(names)] = _MainNames(names)
    reducers = pickler.dispatch_table.maps[0]  # for cells, code and other parts of functions
    has_sent = False

    def reduce(value: Any) -> object:
        nonlocal has_sent
        if not has_sent and not _is_of_session(value):  # objects that sent ones refer to may be from other modules
            return NotImplemented
        if type(value) in reducers:
            return reducers[type(value)](value)
        reduced: Any = pickler.reducer_override(value)
        if reduced is NotImplemented:
            return reduced
        has_sent = True
        name: str = value.__name__
        if names.get(name) is not value:
            return reduced
        make, arguments, *state = reduced
        return _named, (name, make, arguments), *state

    yield reduce


def _cloudpickle() -> ModuleType | None:
    try:
        return require("cloudpickle", extra=_EXTRA, purpose="sending classes by value")
    except MissingExtra:
        return None


def _is_of_session(value: object) -> TypeGuard[FunctionType | type]:
    return isinstance(value, (FunctionType, type)) and value.__module__ == "__main__"


def _refuse(value: object) -> object:
    if not _is_of_session(value):
        return NotImplemented
    raise NotPicklable(
        f"{_what(value)}, and workers that are started by spawn or forkserver cannot import it. {_advice()} "
        f"Or install cloudpickle (pip install 'feedline[{_EXTRA}]'), which can send it as it is."
    )


class _MainNames(dict[str, object]):
    """The global names of the session. In a worker they become those of its own `__main__`.

    There, a function finds what another has set, and the worker's answers are pickled by name.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return _main_names, ()


def _main_names() -> dict[str, object]:
    return vars(sys.modules["__main__"])


def _named(name: str, make: Callable[..., object], arguments: tuple[object, ...]) -> object:
    """Recreate a class or function, and put it where the session has it."""
    value = make(*arguments)
    _main_names()[name] = value
    return value


def _what(value: FunctionType | type) -> str:
    kind = "class" if isinstance(value, type) else "function"
    return f"The {kind} {value.__qualname__} is defined in an interactive session (__main__ of a notebook or a prompt)"


def _advice(where: str = "Put it into a module, a file that the session imports") -> str:
    fork = 'multiprocessing_context="fork", or ' if "fork" in multiprocessing.get_all_start_methods() else ""
    return f'{where}; or choose {fork}engine="thread".'


def not_found(exc: AttributeError) -> NotPicklable | None:
    """Return an error if a worker did not find a definition of the dataset in the main program; else None."""
    if "__main__" not in str(exc) and "__mp_main__" not in str(exc):
        return None
    return NotPicklable(
        f"A worker did not find a definition of the main program ({exc}). Workers that are started by spawn or "
        "forkserver import the program, which leaves out everything under `if __name__ == "
        f'"__main__":`. {_advice("Define it above that line")}'
    )


def can_import_main() -> bool:
    """True if a process that is not forked can import the main program."""
    main = sys.modules["__main__"]
    if getattr(main.__spec__, "name", None) is not None or getattr(sys, "frozen", False):
        return True
    file = getattr(main, "__file__", None)
    return file is not None and os.path.exists(os.path.join(_first_folder(), file))  # "<stdin>" does not exist


def _first_folder() -> str:
    folder: str | None = vars(multiprocessing.process).get("ORIGINAL_DIR")
    return folder or ""


@contextmanager
def without_file() -> Iterator[None]:
    """Hide a main program's `__file__` that does not exist from processes started inside the block."""
    names = vars(sys.modules["__main__"])
    file = names.get("__file__")
    if file is None or can_import_main():
        yield
        return
    del names["__file__"]
    try:
        yield
    finally:
        names["__file__"] = file
