"""The folder that a vault on disk lies in."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from feedline.datasets.cache.ground import FileGround
from feedline.datasets.cache.vault import Head, Vault
from feedline.errors import SourceError

FILE = "samples.feedline"
_LOCK = "lock"


def read_vault(folder: Path) -> Vault:
    """Return the vault in a folder, to be read only; its head may be damaged."""
    return Vault(FileGround(folder / FILE, readonly=True), limit=0)


def head_of(folder: Path) -> Head | None:
    """Return what the vault in a folder is about; None if it is damaged."""
    vault = read_vault(folder)
    try:
        return vault.head()
    finally:
        vault.close()


def ensure_vault(folder: Path, head: Head) -> bool:
    """Have a vault of this head in a folder; False if there was another one, which is dropped.

    Of several processes that do this at the same time, one makes the vault.

    Raises:
        SourceError: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _LOCK).touch()
    except OSError as exc:
        raise _refused(folder, exc) from exc
    lock = FileGround(folder / _LOCK)
    try:
        with lock.locked():
            was_there = (folder / FILE).exists()
            if was_there and head_of(folder) == head:
                return True
            make_vault(folder, head)
            return not was_there
    finally:
        lock.close()


def make_vault(folder: Path, head: Head) -> None:
    """Put an empty vault into a folder, in place of one that may be there; at once, so that nobody sees half of it.

    Programs that have the old one open go on with it.

    Raises:
        SourceError: the folder cannot be written to.
    """
    name = ""
    try:
        fd, name = tempfile.mkstemp(prefix=FILE, suffix=".tmp", dir=folder)
        with os.fdopen(fd, "r+b") as file:
            file.truncate(Vault.least_bytes(head.count))
            ground = FileGround(Path(name))
            Vault(ground, limit=0).make(head)
            ground.sync()
            ground.close()
        os.replace(name, folder / FILE)
    except OSError as exc:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise _refused(folder, exc) from exc


def _refused(folder: Path, exc: OSError) -> SourceError:
    return SourceError(
        f"A store of samples cannot be made in {folder}: {exc.strerror or exc}. It has to be a folder that can be "
        "written to."
    )


def open_vault(folder: Path, limit: int) -> Vault:
    """Return the vault in a folder, to be read and written up to a number of bytes."""
    return Vault(FileGround(folder / FILE), limit=limit)
