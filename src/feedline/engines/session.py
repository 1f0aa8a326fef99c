"""Classes and functions of an interactive session: a notebook, the Python prompt, `python -c`, a program from a pipe.

Workers that are not forked import the main program to find what it defines. A session cannot be imported: it has no
file. So its classes and functions are sent by value, with cloudpickle; without that an error says what else to do.
Test: tests/engines/test_session.py
"""

from __future__ import annotations

import io
import multiprocessing
import multiprocessing.process
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from types import FunctionType
from typing import Any

from feedline._optional import require
from feedline.errors import MissingExtra, NotPicklable
from feedline.failures import words

_EXTRA = "notebook"


# Any: whatever the user has made.
def by_value() -> Callable[[Any], Any] | None:
    """Return how what the session defines is pickled, a `reducer_override`; None if workers can import it.

    What is returned raises `NotPicklable` about a class or function that cannot be sent.
    """
    if can_import_main():
        return None
    try:
        dumps: Callable[[Any], bytes] | None
        dumps = require("cloudpickle", extra=_EXTRA, purpose="sending classes by value").dumps
    except MissingExtra:
        dumps = None

    def reduce(value: Any) -> Any:
        if not isinstance(value, (FunctionType, type)) or value.__module__ != "__main__":
            return NotImplemented
        if dumps is None:
            raise NotPicklable(
                f"{_what(value)}, and workers that are started by spawn or forkserver cannot import that. {_advice()} "
                f"Or install cloudpickle (pip install 'feedline[{_EXTRA}]'), with which it is sent as it is."
            )
        try:
            return _remade, (dumps(value),)
        except Exception as exc:
            raise NotPicklable(
                f"{_what(value)}, so that it is sent to workers by value, with all that it refers to. That fails: "
                f"{words(exc)}. Look at the global names that it uses. {_advice()}"
            ) from exc

    return reduce


def _what(value: Any) -> str:
    kind = "class" if isinstance(value, type) else "function"
    return f"The {kind} {value.__qualname__} is defined in an interactive session (__main__ of a notebook or a prompt)"


def _advice() -> str:
    fork = 'multiprocessing_context="fork", or ' if "fork" in multiprocessing.get_all_start_methods() else ""
    return f'Put it into a module, a file that the session imports; or choose {fork}engine="thread".'


def not_found(exc: AttributeError) -> NotPicklable | None:
    """Return what to say if a worker did not find in the main program what the dataset was made of; else None."""
    if "__main__" not in str(exc) and "__mp_main__" not in str(exc):
        return None
    return NotPicklable(
        f"A worker did not find in the main program what the training process has there ({exc}). Workers that are "
        "started by spawn or forkserver import the program: what stands under `if __name__ == "
        f'"__main__":` is not there. {_advice()}'
    )


def can_import_main() -> bool:
    """True if a process that is not forked can import the main program."""
    main = sys.modules["__main__"]
    if getattr(main.__spec__, "name", None) is not None or getattr(sys, "frozen", False):
        return True
    file = getattr(main, "__file__", None)
    return file is not None and os.path.exists(os.path.join(_first_folder(), file))  # "<stdin>" does not


def _first_folder() -> str:
    folder: str | None = vars(multiprocessing.process).get("ORIGINAL_DIR")
    return folder or ""


@contextmanager
def without_file() -> Iterator[None]:
    """Start a process inside of the block: it does not look for a file of the main program that is none."""
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


def _remade(data: bytes) -> Any:
    """Make a class or function again, and put it into `__main__` with the names that it uses.

    What this process sends back is pickled by name, and is looked for there.
    """
    value = pickle.loads(data)
    names = vars(sys.modules["__main__"])
    names.setdefault(value.__name__, value)
    for part in (value, *vars(value).values()):
        for name, item in getattr(part, "__globals__", {}).items():
            names.setdefault(name, item)
    return value


class Sent:
    """An object that is sent with what the session defines, to a process that is being started."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        reduce = by_value()
        file = io.BytesIO()
        pickler: Any = reduction.ForkingPickler(file, 5)
        if reduce is not None:
            pickler.reducer_override = reduce
        pickler.dump(self.value)
        return _received, (file.getvalue(),)


def _received(data: bytes) -> Sent:
    return Sent(pickle.loads(data))
