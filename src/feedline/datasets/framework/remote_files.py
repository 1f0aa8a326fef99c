"""Files in object stores and on web servers: finding them, and the version that is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TypeGuard

from feedline.datasets.framework.manifest import FACTS, Manifest, manifest_in, refuse_unfinished
from feedline.datasets.framework.paths import File, is_data
from feedline.datasets.storage.addresses import identity_of, shown_url
from feedline.datasets.storage.blob import Version
from feedline.datasets.storage.storage import Storage, protocol_of
from feedline.errors import CorruptSource, SourceError


@dataclass(frozen=True)
class RemoteFile(File):
    """An object in a store or a file on a web server, pinned to the version that was first seen."""

    address: str = field(default="", repr=False)
    """The address as the user gave it: never shown."""

    @property
    def version(self) -> Version:
        """The version to read."""
        return Version(self.size, str(self.tag))

    @property
    def identity(self) -> str:
        """As in `File`."""
        return identity_of(self.address)

    def check(self) -> None:
        """Do nothing: every read requests this version."""


def is_remote(path: object) -> TypeGuard[str]:
    """True for the address of a remote file."""
    return isinstance(path, str) and bool(protocol_of(path))


def is_store_folder(address: str) -> bool:
    """True if an address names a folder of a store: it ends with /, or its last name has no dot."""
    path = address.partition("://")[2]
    if protocol_of(address) in ("http", "https") or any(sign in path for sign in "*["):
        return False
    return "." not in path.partition("/")[2].rpartition("/")[2]


def files_in_store(folder: str, storage: Storage, endings: tuple[str, ...]) -> dict[str, Version]:
    """Return the files below a folder of a store, in natural order. Raises SourceError: there are none."""
    inside = storage.listed(f"{folder.rstrip('/')}/**")
    depth = len(_parts(folder))
    found = {one: version for one, version in inside.items() if is_data("/".join(_parts(one)[depth:]), endings)}
    if not found:
        raise SourceError(f"{shown_url(folder)} has no files that end in {' or '.join(endings)}.")
    return found


def _parts(address: str) -> list[str]:
    return [part for part in address.partition("://")[2].split("/") if part]


def found_remote(address: str, storage: Storage, endings: tuple[str, ...]) -> list[RemoteFile | str]:
    """Return the files that an address stands for: those of a pattern or folder, or the address of a single file.

    A folder ends with /, or its name has no dot. Files of a folder or pattern come in natural order. A folder with a
    manifest has the files that it names; where that has no versions, the folder is listed for them.

    Raises SourceError: there are none, or they cannot be listed.
    """
    if protocol_of(address) in ("http", "https"):
        return [address]
    if address.endswith(f"/{FACTS}"):
        address = address.removesuffix(FACTS)
    manifest = _packed(address, storage)
    if manifest is not None and manifest.is_in_place and all(shard.tag for shard in manifest.shards):
        return [
            RemoteFile(shown_url(one), shard.bytes, shard.tag, one)
            for one, shard in zip(manifest.addresses(), manifest.shards, strict=True)
        ]
    is_folder = is_store_folder(address)
    if not is_folder and not any(sign in address.partition("://")[2] for sign in "*["):
        return [address]
    if is_folder and manifest is None:
        refuse_unfinished(address, storage)
    found = files_in_store(address, storage, endings) if is_folder else storage.listed(address)
    if manifest is not None:  # a run that replaces the files may have put others there
        found = {one: version for one, version in found.items() if os.path.basename(one) in manifest.by_name}
    return [RemoteFile(shown_url(one), *found[one], one) for one in found]


def _packed(address: str, storage: Storage) -> Manifest | None:
    """Return the manifest of a folder of Parquet files that was packed; None if there is none."""
    if "." in address.rpartition("/")[2] or any(sign in address.partition("://")[2] for sign in "*?["):
        return None  # a file, or a pattern, which matches whatever is there
    try:
        manifest = manifest_in(address, storage)
    except CorruptSource:
        raise
    except SourceError:
        return None  # a listing of the folder then succeeds, or says why not
    return manifest if manifest is not None and manifest.format == "parquet" else None
