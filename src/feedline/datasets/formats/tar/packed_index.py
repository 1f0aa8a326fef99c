"""What `feedline pack` wrote about shards: their sizes in a manifest, and an index beside each."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

from feedline.datasets.formats.tar.index import ShardIndex, Unread, decode, scan
from feedline.datasets.framework.shards import Found
from feedline.datasets.framework.store import Cache, Entry
from feedline.datasets.storage.addresses import identity_of, shown_address
from feedline.datasets.storage.blob import Version
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import Storage, local_path, protocol_of
from feedline.errors import CorruptSource
from feedline.system.handle import Handle


class PackedIndexes:
    """The indexes that were packed with shards; each is read when it is needed.

    Args:
        shards: addresses of all shards.
        found: the manifests beside them.
        remote: how remote shards are read.
        cache: whether and where indexes from stores are kept, as the option of `TarDataset`.
        unique_keys: as the option of `TarDataset`.
    """

    def __init__(self, shards: Sequence[str], found: Found, remote: Remote, cache: Cache, *, unique_keys: bool) -> None:
        self._shards = shards
        self._found = found
        self._unique_keys = unique_keys
        self._cache = cache
        self._storage: Handle[Storage] = Handle(functools.partial(Storage, remote, shards), Storage.close)

    def announced(self, shard: str) -> Unread | None:
        """Return what a manifest says of a shard; None if there is none, or a local shard was replaced."""
        packed = self._found.packed(shard)
        if packed is None:
            return None
        manifest, entry = packed
        names = manifest.stored.get("members")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None
        if not protocol_of(shard) and os.path.getsize(local_path(shard)) != entry.bytes:
            return None
        version = manifest.version_of(entry) or Version(entry.bytes, "")
        return Unread(version, entry.samples, entry.samples * len(manifest.stored["fields"]), names)

    def read(self, number: int) -> ShardIndex:
        """Return the index of a shard that was announced, from this machine's cache if it is there.

        If it is missing or damaged, read the headers of the shard instead. Raises CorruptSource: the shard has another
        number of samples than the manifest says.
        """
        shard = self._shards[number]
        packed = self._found.packed(shard)
        assert packed is not None
        manifest, entry = packed
        storage, kept = self._storage.get(), None
        if protocol_of(shard):
            about = {"shard": identity_of(shard), "bytes": entry.bytes, "crc32": entry.crc32}
            kept = Entry.within(self._cache, "tar-index", about)
        content = None if kept is None else kept.load(bytes)
        if content is None:
            content = storage.contents(manifest.index_of(entry))
            if kept is not None and content is not None:
                kept.save(content)
        found = None if content is None else decode(content, entry.bytes, entry.crc32)
        if found is None:
            blob = storage.open(shard, manifest.version_of(entry))
            try:
                found = scan(blob, unique=self._unique_keys)
            finally:
                blob.close()
        if found.count != entry.samples:
            raise CorruptSource(
                f"{shown_address(shard)} has {found.count} samples, but {entry.samples} were packed. Get another copy, "
                "or pack it again."
            )
        return found

    def close(self) -> None:
        """Close the connections of this process. They are reopened when needed."""
        self._storage.close()
