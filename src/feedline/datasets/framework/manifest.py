"""The manifest of a folder of shards: which shards it has, how large they are, and what their samples hold.

`feedline pack` writes it last, so a folder with a manifest is complete. Readers that find one need not list the folder,
and need not read the headers of tar shards: the folder `.index` holds an index of each.
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from dataclasses import dataclass, field
from typing import Any

from feedline.datasets.framework.checksums import check_seal
from feedline.datasets.storage.addresses import identity_of, shown_address
from feedline.datasets.storage.blob import Version
from feedline.datasets.storage.storage import Storage, local_path, protocol_of
from feedline.errors import CorruptSource, SourceError
from feedline.system.failures import words
from feedline.types import JsonObject

FACTS = "feedline.json"
"""The file in which `feedline pack` describes a folder that it wrote."""
INDEX_FOLDER = ".index"
"""The folder with an index of each tar shard. Programs that look for shards skip names that begin with a dot."""
WORK_FOLDER, JOB = ".packing", "job.json"
"""Where `feedline pack` keeps its work in a store, and what describes it. Both are there until the manifest is."""
UNFINISHED = f"{WORK_FOLDER}/{JOB}"


@dataclass(frozen=True)
class Shard:
    """One shard, as it was packed."""

    name: str
    bytes: int
    samples: int
    crc32: int
    """Checksum of all its bytes."""
    tag: str = ""
    """The version that the store gave it; empty for local files, and in stores without versions."""

    # Any: values from a file.
    @classmethod
    def from_json(cls, stored: Any) -> Shard:
        """Return the shard that a manifest describes. Raises TypeError or ValueError: it is not one."""
        found = cls(**stored)
        numbers = (found.bytes, found.samples, found.crc32)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("a size is not a number")
        if any(type(text) is not str for text in (found.name, found.tag)):
            raise TypeError("a name is not a string")
        if os.path.basename(found.name) != found.name or not found.name or found.name in (".", ".."):
            raise ValueError("a name is not the name of a file")  # it becomes part of an address
        return found


@dataclass(frozen=True)
class Manifest:
    """The shards of a folder."""

    folder: str
    """The path or address, without a slash at the end."""
    format: str
    """A key of `feedline.datasets.derived.formats.READABLE`."""
    shards: tuple[Shard, ...]
    stored: JsonObject = field(repr=False)
    """Everything in the file: the number of samples, the fields, metadata."""

    @functools.cached_property
    def is_in_place(self) -> bool:
        """True if the shards are where they were packed: copies in another place have other tags."""
        return bool(self.stored.get("place") == identity_of(self.folder))

    @property
    def fingerprint(self) -> str:
        """A digest that changes if a shard does."""
        return f"{zlib.crc32(json.dumps(self.stored).encode()):08x}"

    @functools.cached_property
    def by_name(self) -> dict[str, Shard]:
        """The shards by name."""
        return {shard.name: shard for shard in self.shards}

    def address_of(self, shard: Shard) -> str:
        return f"{self.folder}/{shard.name}"

    def index_of(self, shard: Shard) -> str:
        return f"{self.folder}/{INDEX_FOLDER}/{shard.name}"

    def version_of(self, shard: Shard) -> Version | None:
        """Return the version that was packed; None if only its size is known."""
        return Version(shard.bytes, shard.tag) if shard.tag and self.is_in_place else None

    def addresses(self) -> list[str]:
        """Return the addresses of all shards, in order."""
        return list(map(self.address_of, self.shards))


def manifest_in(folder: str, storage: Storage) -> Manifest | None:
    """Return the manifest of a local folder or of one in a store; None if it has none that lists shards.

    Raises SourceError: the store does not answer; CorruptSource: the manifest is damaged.
    """
    folder = folder.rstrip("/")
    name = f"{folder}/{FACTS}"
    content = storage.contents(name)
    if content is None:
        return None
    check_seal(shown_address(name), content, is_own=True)
    try:
        stored = json.loads(content)
        if "shards" not in stored:  # a folder of arrays
            return None
        shards = tuple(map(Shard.from_json, stored["shards"]))
        format_, count = stored["format"], stored["count"]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as exc:
        raise CorruptSource(f"{shown_address(name)} is not a manifest of `feedline pack`: {words(exc)}.") from exc
    if count != sum(shard.samples for shard in shards) or not isinstance(format_, str):
        raise CorruptSource(f"{shown_address(name)} is damaged: its number of samples does not match its shards.")
    return Manifest(folder, format_, shards, stored)


def refuse_unfinished(folder: str, storage: Storage) -> None:
    """Refuse a folder of a store without a manifest if it is still being packed. Raises SourceError: it is."""
    if protocol_of(folder) in ("", "http", "https") or storage.contents(f"{folder.rstrip('/')}/{UNFINISHED}") is None:
        return
    raise SourceError(
        f"`feedline pack` has not finished {shown_address(folder)}: it has no manifest yet. Wait, or run the same "
        "command again to finish it. A pattern of names reads the shards that are there."
    )


def folder_of(address: str) -> str | None:
    """Return the folder that an address names by a slash at its end, or by its manifest; None if it names neither."""
    for ending in (f"/{FACTS}", "/"):
        if address.endswith(ending):
            return address[: -len(ending)]
    return None


def is_folder_here(path: str) -> bool:
    """True for an address or path of a local folder that has a manifest."""
    return not protocol_of(path) and os.path.isfile(os.path.join(local_path(path), FACTS))
