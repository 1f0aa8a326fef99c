"""Files that feedline writes: replaced in one step, in folders that are created before any work is done for them."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from feedline.errors import BadOption
from feedline.system.failures import words

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}\.part")
ABANDONED_S = 3600.0
"""An unfinished file that was not written to for this long was left by a process that died. A guess."""


@contextlib.contextmanager
def replacing(path: Path, *, flush: bool = True) -> Iterator[IO[bytes]]:
    """Yield a file that replaces `path` at the end of the block, unless the block raises an exception.

    Without `flush`, the file may be damaged after a power failure.
    """
    unfinished = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    try:
        with open(unfinished, "xb") as file:
            yield file
            if flush:
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    if flush:
        # Some file systems cannot flush folders. After a power failure there, the old file may be back: whole as well.
        with contextlib.suppress(OSError):
            sync(path.parent)


def write_durably(path: Path, *pieces: ReadableBuffer) -> None:
    """Replace a file: at any moment, it has all of the old or all of the new content, also after a power failure."""
    with replacing(path) as file:
        file.writelines(pieces)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def drop_abandoned(folder: Path, beginning: str = "", *, after_s: float = ABANDONED_S) -> None:
    """Delete what killed processes left unfinished in a folder, of files whose names begin so."""
    for path in folder.iterdir():
        if path.name.startswith(f".{beginning}") and _UNFINISHED.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                if time.time() - path.stat().st_mtime >= after_s:
                    path.unlink()


def make_folder_for(path: Path) -> None:
    """Create the folder that `path` is to be written to, with its parents, unless it exists.

    Raises:
        BadOption: it cannot be created, or files cannot be created in it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make_folder_for(Path(folder, "runs", "monday", "page.html"))
        ...     Path(folder, "runs", "monday").is_dir()
        True
    """
    folder = path.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BadOption(f"{path} cannot be written: {words(exc)}. Choose another place.") from exc
    if not os.access(folder, os.W_OK):
        raise BadOption(f"{path} cannot be written: {folder} is not writable. Choose another place.")
