"""The columns and shards of an MDS dataset, as its index.json lists them."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from feedline.datasets.formats.indexed_shards import AGAIN, Folder, Shard
from feedline.datasets.formats.mds.encodings import size_of
from feedline.errors import BadOption, CorruptSource
from feedline.system.failures import words
from feedline.types import JsonObject

_PACKINGS = {"zstd": "zstd", "gz": "gzip", "bz2": "bzip2"}
"""MosaicML's names of compressions that feedline reads."""


@dataclass(frozen=True)
class Column:
    """A field of every sample."""

    name: str
    encoding: str
    size: int | None
    """Bytes of every value; None if they vary."""


class Cutter:
    """Cuts some columns out of stored samples.

    Args:
        columns: those of a stored sample.
        wanted: the places of the columns to return.
    """

    def __init__(self, columns: Sequence[Column], wanted: Sequence[int]) -> None:
        self._wanted = list(wanted)
        self._sizes = [column.size or 0 for column in columns]
        self._varying = [place for place, column in enumerate(columns) if column.size is None]
        self._head = f"<{len(self._varying)}I"
        """The form of what a sample begins with: the sizes of those columns."""

    def cut(self, data: bytes) -> list[bytes]:
        """Return the bytes of the columns of a sample. Raises ValueError or struct.error: they are not all there."""
        sizes = self._sizes.copy()
        for place, size in zip(self._varying, struct.unpack_from(self._head, data), strict=True):
            sizes[place] = size
        bounds = list(accumulate(sizes, initial=4 * len(self._varying)))
        if bounds[-1] != len(data):
            raise ValueError(f"its columns take {bounds[-1]} bytes, but it has {len(data)}")
        return [data[bounds[place] : bounds[place + 1]] for place in self._wanted]


def read_layout(folder: Folder) -> tuple[tuple[Column, ...], list[Shard]]:
    """Return the columns and shards that index.json lists.

    Raises CorruptSource: it is damaged; BadOption: feedline does not read such shards.
    """
    found = folder.read_index()
    listed = found.get("shards")
    if not isinstance(listed, list):
        advice = "It belongs to LitData: open it with LitDataDataset." if "chunks" in found else AGAIN
        raise CorruptSource(f"{folder.name} is not the index of an MDS dataset: it lists no shards. {advice}")
    columns: tuple[Column, ...] = ()
    shards = []
    columns_of = functools.cache(_columns)  # all shards have the same columns, and there may be many thousands
    for entry in listed:
        if not isinstance(entry, dict):
            raise CorruptSource(f"{folder.name} lists a shard that is not a JSON object. {AGAIN}")
        _check_kind(folder, entry)
        described = tuple(
            tuple(part) if isinstance(part := entry.get(f"column_{what}"), list) else ()
            for what in ("names", "encodings", "sizes")
        )
        own = columns_of(folder.name, *_hashable(folder, described))
        if columns and own != columns:
            raise BadOption(
                f"The shards in {folder.name} have different columns: {_names(columns)} and {_names(own)}. feedline "
                "reads shards with the same columns. Put the others into a folder of their own, and combine them "
                "with feedline.datasets.mix."
            )
        columns = own
        shards.append(_shard(folder, entry))
    return columns, shards


def _check_kind(folder: Folder, entry: JsonObject) -> None:
    if entry.get("version") != 2 or entry.get("format") != "mds":
        raise BadOption(
            f"{folder.name} lists a shard of format {entry.get('format')!r:.50} and version "
            f"{entry.get('version')!r:.50}. feedline reads MDS shards of version 2, which MDSWriter writes."
        )


# object: what JSON holds.
def _hashable(folder: Folder, parts: tuple[tuple[object, ...], ...]) -> tuple[tuple[object, ...], ...]:
    if any(not isinstance(one, (str, int, type(None))) for part in parts for one in part):
        raise CorruptSource(f"{folder.name} does not describe the columns of its shards. {AGAIN}")
    return parts


def _columns(
    name: str, names: tuple[object, ...], encodings: tuple[object, ...], sizes: tuple[object, ...]
) -> tuple[Column, ...]:
    is_text = all(isinstance(one, str) for one in (*names, *encodings))
    if not names or not is_text or len(set(names)) < len(names) or not len(names) == len(encodings) == len(sizes):
        raise CorruptSource(f"{name} does not describe the columns of its shards. {AGAIN}")
    try:
        columns = tuple(
            Column(str(one), str(two), size_of(str(two))) for one, two in zip(names, encodings, strict=True)
        )
    except BadOption as exc:
        raise BadOption(f"{name} cannot be used: {words(exc)}.") from exc
    for column, size in zip(columns, sizes, strict=True):
        if size != column.size:
            raise CorruptSource(
                f"{name}: values of {column.name!r} have {size} bytes in the index, but their encoding, "
                f"{column.encoding!r}, takes {column.size}. {AGAIN}"
            )
    return columns


def _names(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{column.name!r} ({column.encoding})" for column in columns)


def _shard(folder: Folder, entry: JsonObject) -> Shard:
    raw, packed = entry.get("raw_data"), entry.get("zip_data")
    if not isinstance(raw, dict) or not isinstance(packed, (dict, type(None))):
        raise CorruptSource(f"{folder.name} does not name the files of its shards. {AGAIN}")
    shard = folder.shard(raw.get("basename"), raw.get("bytes"), entry.get("samples"))
    # MosaicML Streaming unpacks a shard beside the compressed one.
    if packed is None or folder.has(str(raw["basename"])):
        return shard
    algorithm = str(entry.get("compression")).partition(":")[0]
    if algorithm not in _PACKINGS:
        raise BadOption(
            f"{folder.name} lists shards compressed with {algorithm!r:.50}. feedline reads {', '.join(_PACKINGS)} and "
            "shards that are not compressed."
        )
    return folder.shard(packed.get("basename"), raw.get("bytes"), entry.get("samples"), _PACKINGS[algorithm])
