"""Expands patterns into shard names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator

from feedline.datasets.framework.manifest import (
    Manifest,
    Shard,
    folder_of,
    is_folder_here,
    manifest_in,
    refuse_unfinished,
)
from feedline.datasets.framework.paths import natural
from feedline.datasets.storage.addresses import shown_address
from feedline.datasets.storage.blob import Version
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import Storage, local_path, names_versions, protocol_of
from feedline.errors import BadOption, SourceError

_MOST = 1_000_000
_SEPARATOR = re.compile(r"::(?![0-9a-fA-F:.%]*\])")
"""The separator between patterns; does not match inside an address such as [::1]."""


def expand(
    shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], listed: Callable[[str], list[str]] | None = None
) -> list[str]:
    """Return the shards that one or more patterns match, in their order.

    Braces stand for numbers or alternatives: `shard-{000..099}.tar`, `{train,val}.tar`. `::` separates patterns, as in
    the webdataset package. In local paths, `*`, `?` and `[...]` match existing files, `a-9` before `a-10`; a file with
    exactly that name takes precedence. They also match objects of a store, which `listed` lists. So it does for
    folders: addresses that end in a slash, and folders with a manifest. Raises BadOption: there is no pattern, or a
    shard occurs twice; SourceError: no file matches.

    Example:
        >>> expand("s3://bucket/{train,val}-{08..10}.tar")[1:4]
        ['s3://bucket/train-09.tar', 's3://bucket/train-10.tar', 's3://bucket/val-08.tar']
    """
    patterns = [shards] if isinstance(shards, (str, os.PathLike)) or not isinstance(shards, Iterable) else list(shards)
    found: list[str] = []
    for pattern in patterns:
        if not isinstance(pattern, (str, os.PathLike)):
            raise BadOption(
                f"A shard is a path or an address in a string, but one is of type {type(pattern).__name__}."
            )
        text = os.fspath(pattern)
        if text and isinstance(pattern, os.PathLike) and not is_folder_here(text):
            found += _files(text, None)  # neither braces nor several in one
            continue
        for part in _SEPARATOR.split(text):
            for name in braces(part):
                found += _files(name, listed)
    if not found or not all(found):
        shown = [shown_address(os.fspath(pattern)) for pattern in patterns]
        raise BadOption(f"shards={shown!r} names no shard: a path or an address is empty, or there is none.")
    if len(set(found)) < len(found):
        twice = next(name for place, name in enumerate(found) if name in found[:place])
        raise BadOption(f"The shard {shown_address(twice)} comes twice, so that its samples would.")
    return found


def _files(name: str, listed: Callable[[str], list[str]] | None) -> Iterable[str]:
    protocol = protocol_of(name)
    if listed is not None and (is_folder_here(name) or (folder_of(name) is not None and "://" in name)):
        return listed(name)
    if protocol:
        is_pattern = any(sign in name.partition("://")[2] for sign in "*[") and protocol not in ("http", "https")
        return listed(name) if is_pattern and listed is not None else [name]
    path = local_path(name)
    if not glob.has_magic(path) or os.path.exists(path):
        return [name]
    files = sorted(glob.glob(path, recursive=True), key=natural)
    if not files:
        raise SourceError(f"No file fits {shown_address(name)!r}. Is the folder right?")
    return files


def braces(pattern: str) -> Iterator[str]:
    """Yield the expansions of a pattern with braces, following the rules of shells.

    Example:
        >>> list(braces("a{1..3}{x,y{6,7}}"))[:4]
        ['a1x', 'a1y6', 'a1y7', 'a2x']
        >>> list(braces("a{b}c{")), list(braces("{09..11}"))
        (['a{b}c{'], ['09', '10', '11'])
    """
    opened = pattern.find("{")
    while opened >= 0:
        closed, parts = _inside(pattern, opened)
        choices = _choices(parts)
        if choices is not None:
            for choice in choices:
                for rest in braces(pattern[closed + 1 :]):
                    yield pattern[:opened] + choice + rest
            return
        opened = pattern.find("{", opened + 1)
    yield pattern


def _inside(pattern: str, opened: int) -> tuple[int, list[str]]:
    """Return where a brace is closed, and its content, split at commas outside of inner braces."""
    parts, depth, begun = list[str](), 0, opened + 1
    for place in range(opened, len(pattern)):
        depth += (pattern[place] == "{") - (pattern[place] == "}")
        if depth == 0 or (depth == 1 and pattern[place] == ","):
            parts.append(pattern[begun:place])
            begun = place + 1
        if depth == 0:
            return place, parts
    return -1, []


def _choices(parts: list[str]) -> Iterator[str] | None:
    """Return the expansions of a pair of braces; None if it is literal text."""
    if len(parts) != 1:
        return (choice for part in parts for choice in braces(part)) if parts else None
    ends = parts[0].split("..")
    if len(ends) not in (2, 3):
        return None
    try:
        numbers = [int(end) for end in ends]
    except ValueError:
        return None
    first, last, step = numbers[0], numbers[1], abs(numbers[2]) if len(numbers) == 3 else 1
    if abs(last - first) // max(1, step) >= _MOST:
        raise BadOption(f"{{{parts[0]}}} stands for more than {_MOST} shards.")
    digits = [end.lstrip("+-") for end in ends[:2]]
    padded = any(len(end) > 1 and end[0] == "0" for end in digits)
    width = max(map(len, ends[:2])) if padded else 0
    way = range(first, last + 1, step or 1) if first <= last else range(first, last - 1, -(step or 1))
    return (f"{number:0{width}d}" for number in way)


class Found:
    """The manifests of the folders in which shards lie, each read once, and the versions of shards in a listing.

    Pickles with what it has read.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._manifests: dict[str, Manifest | None] = {}
        self.listed_versions: dict[str, Version] = {}
        """The versions of shards that a store listed, if they can be opened by them without a request."""

    def listed(self, pattern: str) -> list[str]:
        """Return the shards of a folder, or those of a store that match a pattern.

        A folder with a manifest has the shards that the manifest lists, and is not listed itself. A pattern matches
        whatever is there.
        """
        named = folder_of(pattern) or (pattern if is_folder_here(pattern) else None)
        storage = Storage(self._remote)
        try:
            if named is None:
                return self._listed(pattern, storage)
            found = manifest_in(named, storage)
            if found is not None and found.format != "tar":
                raise BadOption(f"{shown_address(found.folder)} has {found.format} shards, but this source reads tar.")
            if found is not None and (shards := found.addresses()):
                self._manifests[found.folder] = found
                return shards
            refuse_unfinished(named, storage)
            return self._listed(f"{named}/*.tar", storage)
        finally:
            storage.close()

    def _listed(self, pattern: str, storage: Storage) -> list[str]:
        found = storage.listed(pattern)
        if names_versions(pattern):
            self.listed_versions |= {shard: version for shard, version in found.items() if version.tag}
        return list(found)

    def packed(self, shard: str) -> tuple[Manifest, Shard] | None:
        """Return what the manifest beside a shard says of it, if that was read; None if there is none."""
        folder, _, name = shard.rpartition("/")
        manifest = self._manifests.get(folder or ".")
        found = None if manifest is None else manifest.by_name.get(name)
        return None if manifest is None or found is None else (manifest, found)

    def versions(self, shards: Iterable[str]) -> dict[str, Version]:
        """Return the versions of shards that a manifest or a listing tells."""
        packed = {shard: self.packed(shard) for shard in shards}
        found = {shard: one[0].version_of(one[1]) for shard, one in packed.items() if one is not None}
        return self.listed_versions | {shard: version for shard, version in found.items() if version is not None}

    def look_beside(self, shards: Iterable[str], storage: Storage) -> None:
        """Read the manifests beside shards, except on web servers. One that cannot be read is ignored."""
        for folder in dict.fromkeys(shard.rpartition("/")[0] or "." for shard in shards):
            if folder in self._manifests or protocol_of(f"{folder}/") in ("http", "https"):
                continue
            try:
                self._manifests[folder] = manifest_in(folder, storage)
            except SourceError:  # the headers of shards say the same
                self._manifests[folder] = None
