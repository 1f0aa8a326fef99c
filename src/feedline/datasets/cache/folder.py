"""The folder of a cache: a sample store on disk, never among files of others."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

from feedline.datasets.cache.sample_store import Head, SampleStore
from feedline.datasets.cache.shared_bytes import SharedFile
from feedline.datasets.cache_file import check_own
from feedline.errors import BadOption, SourceError

FILE = "samples.feedline"
"""The samples; and the mark by which a folder is known to be one for them."""


def has_store(folder: Path) -> bool:
    """True if there is a store in a folder, whatever it is about."""
    path = folder / FILE
    return path.exists() and path.stat().st_size > 0  # empty: somebody was killed before he made one


def read_store(folder: Path) -> SampleStore:
    """Return the store in a folder, to be read only; its head may be damaged."""
    return SampleStore(SharedFile(folder / FILE, readonly=True), limit=0)


def head_of(folder: Path) -> Head | None:
    """Return what the store in a folder is about; None if there is none, or a damaged one."""
    if not has_store(folder):
        return None
    with closing(read_store(folder)) as store:
        return store.head()


def refuse_whole(folder: Path) -> None:
    """Refuse a folder that holds what `feedline.precompute` has stored. Raises BadOption: it does."""
    if head_of(folder) is None:
        return
    with closing(read_store(folder)) as store:
        if store.is_whole:
            raise BadOption(
                f"{folder} holds what feedline.precompute has stored, and a cache does not drop that. Give the cache a "
                "folder of its own; or remove this one, if the dataset has changed and nobody needs it any more."
            )


def drop_other(folder: Path, head: Head) -> bool:
    """Put an empty file in the place of a store that is damaged, or about something else; True if there was one.

    Programs that have it open go on with it. Of several that do this at the same time, one does.
    """
    if not has_store(folder) or head_of(folder) == head:
        return False
    with closing(read_store(folder)) as store, store.locked():
        if not has_store(folder) or head_of(folder) == head:
            return False  # another program was first
        empty = folder / f"{FILE}.new"
        empty.touch()
        os.replace(empty, folder / FILE)  # not removed: by this file the folder is known
        return True


def write_store(folder: Path, limit: int | None) -> SampleStore:
    """Return the store in a folder, to be read and written; makes the folder if need be.

    Raises BadOption: the folder holds somebody else's files; SourceError: it cannot be written to.

    Args:
        folder: where; nothing but feedline's own file is touched in it.
        limit: how many bytes it may take; None for what it takes already and half of what is free on the disk.
    """
    check_own(folder, FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).touch()
        if limit is None:
            limit = (folder / FILE).stat().st_blocks * 512 + shutil.disk_usage(folder).free // 2
    except OSError as exc:
        raise SourceError(
            f"A store of samples cannot be made in {folder}: {exc.strerror or exc}. It has to be a folder that can be "
            "written to."
        ) from exc
    return SampleStore(SharedFile(folder / FILE), limit=limit)
