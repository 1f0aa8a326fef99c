"""What a path is, by the names of files. One place decides for `pack` and `inspect`, so that they agree."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from feedline.datasets.cache.folder import FILE as SAMPLES
from feedline.packing.folders import is_picture_name
from feedline.packing.formats import FORMATS
from feedline.packing.line import CLASSES
from feedline.packing.writers.npy import META

COMPRESSED = (".tar.gz", ".tar.zst", ".tar.zstd", ".tgz")
"""How the names of compressed tar files end."""
DATABASES = (".db", ".sqlite", ".sqlite3")
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
ENVIRONMENT = "data.mdb"
"""The file that makes its folder an environment of LMDB."""
_OTHER_SUFFIXES = {".npz": "ArrayDataset", ".arrow": "ArrowDataset", ".feather": "ArrowDataset"}
_SHARDED = ("TarDataset", "HDF5Dataset", "ParquetDataset", "ArrowDataset")
"""Classes that read several files as one dataset."""
_BESIDE = (".json", ".md", ".txt", ".yaml", ".yml")
"""Of files that say something about the stores beside them."""


@dataclass(frozen=True)
class Folder:
    """What a folder is."""

    kind: str
    """"environment" of LMDB, "precomputed" samples, "arrays" (an .npy file per field), "shards" (stores that are read
    as one), "stores" (that are not), "files", or "empty"."""
    files: list[Path] = field(default_factory=list)
    """The shards, the arrays or the stores, in order. Those of a folder of files are not listed: they may be many."""
    beside: list[Path] = field(default_factory=list)
    """Other files than these."""
    dataset: str = ""
    """The class that reads it; "" if none does, or if it depends on what is in the files."""
    endings: Counter[str] = field(default_factory=Counter)
    """How many files there are with each ending."""


def folder_at(path: Path) -> Folder:
    """Say what a folder is."""
    if (path / ENVIRONMENT).exists():
        return Folder("environment", dataset=CLASSES["lmdb"])
    if (path / SAMPLES).exists():
        return Folder("precomputed", dataset="PrecomputedDataset")
    files = list(_files_below(path))
    if not files:
        return Folder("empty")
    endings = Counter(map(ending_of, files))
    stores = sum(count for ending, count in endings.items() if _class_of(ending) is not None)
    pictures = sum(count for ending, count in endings.items() if is_picture_name(f"a{ending}"))
    others = {ending: count for ending, count in endings.items() if _class_of(ending) is None}
    # A few words about stores are no samples. As many texts as stores are.
    few = sum(others.values()) <= max(1, stores // 2) and set(others) <= set(_BESIDE)
    kinds = endings.keys() - others.keys()
    if few and len(kinds) == 1:
        (kind,) = kinds
        name = _class_of(kind) or ""
        found = _apart(files, lambda one: ending_of(one) == kind)
        if name in _SHARDED:
            return Folder("shards", *found, name, endings)
        if kind == ".npy" and all(os.path.dirname(one) == str(path) for one in files):
            return Folder("arrays", *found, name, endings)
    # An array or a table may well be one sample of many. A store of any other kind is not, unless there are far more
    # other files: one that lists recordings, or the thumbnails of pictures.
    several = sum(map(_is_several, files))
    if 4 * several >= len(files) > 2 * pictures:
        return Folder("stores", *_apart(files, _is_several), endings=endings)
    return Folder("files", endings=endings)


def _apart(files: list[str], is_one: Callable[[str], bool]) -> tuple[list[Path], list[Path]]:
    """Return the files that are meant, and the others; in order."""
    ordered = sorted(files, key=lambda one: one.split(os.sep))
    return [Path(one) for one in ordered if is_one(one)], [Path(one) for one in ordered if not is_one(one)]


def _files_below(path: Path) -> Iterator[str]:
    """Yield all files that are data: neither hidden, nor what programs leave beside it."""
    for place, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith((".", "_")) and name != META:
                yield os.path.join(place, name)


def _is_several(path: str) -> bool:
    ending = ending_of(path)
    has_samples = _class_of(ending) is not None and ending != ".npy"
    return has_samples or ending in DATABASES or os.path.basename(path) in (ENVIRONMENT, SAMPLES)


def suffixes() -> list[str]:
    """Return by which suffixes stores are recognised."""
    return [suffix for one in FORMATS.values() for suffix in one.suffixes] + list(_OTHER_SUFFIXES)


def ending_of(name: str) -> str:
    """Return how a name ends, in lower case: its suffix, or both of a compressed tar file.

    Example:
        >>> ending_of("a.b.TAR.GZ"), ending_of("a.b.h5"), ending_of("a.gz")
        ('.tar.gz', '.h5', '.gz')
    """
    ending = os.path.splitext(name)[1].lower()
    if ending not in _LAST_OF_COMPRESSED:
        return ending
    lower = name[-max(map(len, COMPRESSED)) :].lower()
    return next((one for one in COMPRESSED if lower.endswith(one)), ending)


_LAST_OF_COMPRESSED = {os.path.splitext(f"a{ending}")[1] for ending in COMPRESSED}


def class_for(source: str) -> str | None:
    """Return the class of `feedline.datasets` that reads a file or pattern; None if it does not look like a store."""
    return _class_of(ending_of(source))


@cache
def _class_of(ending: str) -> str | None:
    if ending in COMPRESSED:
        return CLASSES["tar"]
    known = next((CLASSES[one.name] for one in FORMATS.values() if ending in one.suffixes), None)
    return known or _OTHER_SUFFIXES.get(ending)


def shown(paths: list[Path], root: Path, most: int = 3) -> str:
    """Name the first of some files, as seen from a folder."""
    names = ", ".join(str(one.relative_to(root)) for one in paths[:most])
    return f"{names} and {len(paths) - most:,} more" if len(paths) > most else names
