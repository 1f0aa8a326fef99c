"""Objects that are named as a whole, however they are made up inside: files, handles, locks and their like."""

from __future__ import annotations

import io

from feedline.engines.handles import database_handle

LAZILY = "when it is first used, so that each worker has its own"
_PATH = f"Keep the path instead, and open it in __getitem__ {LAZILY}."
_FILE = "an open file ({})", _PATH
_HANDLE = "an object of type {}, which belongs to the process that opened it", _PATH
_LOCAL = (
    "an object of type {}, which is of use in one process only",
    f"Make it {LAZILY}; or leave it out in __getstate__ and make it again in __setstate__.",
)
_BY_MODULE = {
    **dict.fromkeys(("_io", "bz2", "gzip", "io", "lzma", "mmap", "tarfile", "tempfile", "zipfile"), _FILE),
    **dict.fromkeys(("_asyncio", "_queue", "_socket", "_thread", "asyncio", "concurrent", "contextlib"), _LOCAL),
    **dict.fromkeys(("logging", "queue", "select", "selectors", "socket", "ssl", "subprocess", "threading"), _LOCAL),
    "multiprocessing": (
        "an object of type {}, which cannot be shared with workers of this start method",
        "Make locks, queues and values with the context that starts the workers, such as "
        'multiprocessing.get_context("spawn").Lock(). Make pools and processes in each worker, if at all.',
    ),
    "weakref": (
        "a weak reference ({}), which is of use in one process only",
        "Keep the object itself, or leave it out in __getstate__ and make it again in __setstate__.",
    ),
}
"""What to say of objects of the standard library: that the lock of the condition of an event is what cannot be pickled
would help nobody."""


def known(kind: type) -> tuple[str, str] | None:
    """Return what such an object is, with a place for its type, and what to do; None if it is none."""
    if database_handle(kind) is not None:
        return _HANDLE
    return _FILE if issubclass(kind, io.IOBase) else _BY_MODULE.get(root_module(kind))


def root_module(kind: type) -> str:
    """Return the name of the package that a type comes from."""
    return str(kind.__module__).partition(".")[0]
