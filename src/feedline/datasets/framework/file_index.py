"""Indexes of files, kept on disk: where lines, records or the members of a tar file are."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from feedline.datasets.framework.store import Cache, Entry
from feedline.datasets.storage.addresses import identity_of
from feedline.datasets.storage.blob import Blob

T = TypeVar("T")


# object: what JSON holds.
def entry_of(blob: Blob, cache: Cache, kind: str, *about: object) -> Entry | None:
    """Return the entry for what is derived from a file and `about`; None if nothing can be kept.

    The stamp of the entry is that of the file, with its size and tag: what is found there belongs to this version.
    Without a tag, an outdated entry could not be detected.
    """
    name = os.path.realpath(blob.name) if blob.is_local else identity_of(blob.address)
    return Entry.within(cache, kind, [name, *about], blob.stamp) if blob.tag else None


# Any: the attributes of an index, as they were kept.
def kept_index(entry: Entry | None, load: Callable[[Any], T], make: Callable[[], T]) -> T:
    """Return the index that is kept, or a new one, which is then kept: its `vars`, of which `load` makes it again.

    Raises what `make` raises.
    """
    found = None if entry is None else entry.load(load)
    if found is None:
        found = make()
        if entry is not None:
            entry.save(vars(found))
    return found
