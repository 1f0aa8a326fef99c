"""Short folders for sockets: their paths may have about a hundred bytes, and TMPDIR may be longer than that."""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing import process, util
from typing import Any

from feedline.errors import WorkerStartError

_LONGEST = 103
"""How many bytes the path of a socket may have: 107 on Linux, 103 on macOS and BSD."""
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")


def use_short_paths() -> None:
    """Let multiprocessing create the sockets of this process and its children in /tmp if TMPDIR is too long a path.

    It creates them in the temporary folder. With a long TMPDIR the fork server fails with "AF_UNIX path too long", and
    so does receiving a tensor from a worker of torch's loader. The newest Pythons fall back to /tmp themselves.
    """
    current: Any = process.current_process()  # Any: `_config` is private; children inherit it
    folder = current._config.get("tempdir") or os.path.join(tempfile.gettempdir(), "pymp-12345678")
    base = shorter_than(folder, room=len("/listener-12345678"))
    if base is not None:
        folder = tempfile.mkdtemp(prefix="pymp-", dir=base)
        util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
        current._config["tempdir"] = folder


def shorter_than(folder: str, *, room: int) -> str | None:
    """Return a temporary folder to use in the place of `folder`, or None if sockets can be created in that one.

    The path of a socket has `room` bytes after that of the folder, which need not exist.

    Raises:
        WorkerStartError: the path is too long, and no shorter folder can be written.
    """
    if len(os.fsencode(folder)) + room <= _LONGEST:
        return None
    for base in _SHORT:
        if os.access(base, os.W_OK | os.X_OK):
            return base
    raise WorkerStartError(
        f"Workers need a socket, whose path has at most {_LONGEST} bytes. A socket in {folder} would have "
        f"{len(os.fsencode(folder)) + room}, and none of {', '.join(_SHORT)} can be written. Set TMPDIR to a shorter "
        "path, or use the start method 'fork' or engine='thread'."
    )
