"""The folder that a vault on disk lies in."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from feedline.datasets.cache.ground import FileGround
from feedline.datasets.cache.vault import Head, Vault
from feedline.datasets.cache_file import refuse_foreign
from feedline.errors import BadOption, SourceError

FILE = "samples.feedline"
"""The samples; and the mark by which a folder is known to be one for them."""
_LOCK = f"{FILE}.lock"


def check_own(folder: Path) -> None:
    """Refuse a folder that holds anything, unless samples were kept in it before, or that is another user's.

    Raises:
        BadOption: it does, or is.
    """
    refuse_foreign(folder)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return  # there is none yet, or it is told when it is written to
    foreign = [name for name in names if not name.startswith(FILE)]  # with what a program that was killed has left
    if foreign and FILE not in names:
        raise BadOption(
            f"{folder} holds other files, such as {foreign[0]!r}, and nothing is stored among files that are not "
            f"feedline's own. Give a folder that is new or empty, such as {str(folder / 'samples')!r}."
        )


def has_vault(folder: Path) -> bool:
    """True if there is a vault in a folder, whatever it is about."""
    return (folder / FILE).exists()


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


def ensure_vault(folder: Path, head: Head, *, keeps_whole: bool = False) -> bool:
    """Have a vault of this head in a folder; False if there was another one, which is dropped.

    Of several processes that do this at the same time, one makes the vault.

    Args:
        folder: where; nothing but feedline's own files is touched in it.
        head: what the vault is to be about.
        keeps_whole: True not to drop what `feedline.precompute` has stored.

    Raises:
        BadOption: the folder holds somebody else's files, or a whole vault that is to be kept.
        SourceError: the folder cannot be written to.
    """
    check_own(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _LOCK).touch()
    except OSError as exc:
        raise _refused(folder, exc) from exc
    lock = FileGround(folder / _LOCK)
    try:
        with lock.locked():
            was_there = has_vault(folder)
            if was_there and head_of(folder) == head:
                return True
            make_vault(folder, head, keeps_whole=keeps_whole)
            return not was_there
    finally:
        lock.close()


def make_vault(folder: Path, head: Head, *, keeps_whole: bool = False) -> None:
    """Put an empty vault into a folder, in place of one that may be there; at once, so that nobody sees half of it.

    Programs that have the old one open go on with it.

    Raises:
        BadOption: a whole one is there, which is to be kept.
        SourceError: the folder cannot be written to.
    """
    if keeps_whole and _is_whole(folder):
        raise BadOption(
            f"{folder} holds what feedline.precompute has stored, and a cache does not drop that. Give the cache a "
            "folder of its own; or remove this one, if the dataset has changed and nobody needs it any more."
        )
    name = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
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


def _is_whole(folder: Path) -> bool:
    if not has_vault(folder):
        return False
    vault = read_vault(folder)
    try:
        return vault.head() is not None and vault.is_whole
    finally:
        vault.close()


def _refused(folder: Path, exc: OSError) -> SourceError:
    return SourceError(
        f"A store of samples cannot be made in {folder}: {exc.strerror or exc}. It has to be a folder that can be "
        "written to."
    )


def open_vault(folder: Path, limit: int) -> Vault:
    """Return the vault in a folder, to be read and written up to a number of bytes."""
    return Vault(FileGround(folder / FILE), limit=limit)
