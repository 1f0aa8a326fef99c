"""What is in a tar file, by the rules of the webdataset package."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from feedline.datasets.remote.local import LocalBlob
from feedline.datasets.tar.arrays import decode_npy
from feedline.datasets.tar.index import Seeking
from feedline.datasets.tar.members import Bytes, Members
from feedline.datasets.tar.packed import Unpacking, packing_of
from feedline.errors import CorruptSource
from feedline.failures import words
from feedline.packing.contents.contents import Contents, Field, spread, type_text
from feedline.packing.line import LISTS, stored_text
from feedline.packing.schema import Sample
from feedline.packing.writers import tar
from feedline.sizes import VARIABLE, SampleSize, most_bytes

_WINDOW, _CHUNK = 1 << 13, 1 << 20
"""Bytes that are read at a time: of a plain file, most of which is left out, and of a compressed one."""
_INTEGERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_MOST_FIRSTS = 32
"""Samples that are read because they are the first with some field."""
_TEXTS = ("txt", "text", "transcript")


@contextmanager
def opened(path: Path) -> Iterator[Members]:
    """Open a tar file, compressed or not."""
    name = str(path)
    with closing(LocalBlob(name)) as blob:
        packing = packing_of(blob.read(0, min(8, blob.size)))
        if packing is None:
            yield Members(Seeking(blob, _WINDOW), name, size=blob.size, limit=None)
            return
        with open(path, "rb") as file:
            unpacking = Unpacking(packing, functools.partial(file.read, _CHUNK), name)
            yield Members(Bytes(unpacking.next_chunk), name, size=None, limit=most_bytes(), option=VARIABLE)


def look(path: Path) -> Contents:
    """Look into a tar file, whoever wrote it."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    firsts: dict[str, int] = {}
    """The first sample that has a field."""
    per_sample: list[int] = []
    last = None
    others = 0
    try:
        with opened(path) as members:
            while members.advance():
                key, field = split(members.name)
                if not field:
                    others += 1
                    continue
                if key != last:
                    per_sample.append(0)
                per_sample[-1] += 1
                last = key
                firsts.setdefault(field, len(per_sample) - 1)
                counts[field] += 1
                sizes[field] += members.size
            stored, others = tar.comment_in(members.common), others + members.left_out
    except CorruptSource as exc:
        if is_plain(path) or counts:
            raise
        raise CorruptSource(f"{path} is compressed, and no tar file, or not a whole one: {words(exc)}.") from exc
    keys = len(per_sample)

    def take(wanted: int) -> list[Sample]:
        return _take(path, set(spread(keys, wanted)))

    found = _take(path, {*spread(keys, 4), *itertools.islice(firsts.values(), _MOST_FIRSTS)})
    fields = tuple(
        Field(name, _type(name, found), counts=(("members", count), ("bytes", sizes[name])))
        for name, count in counts.items()
    )
    text = stored_text("tar", str(path), stored, f"TarDataset({str(path)!r})")
    if not is_plain(path):
        text = f"{text}.stream()"
    details: dict[str, Any] = {}
    if per_sample:
        least, most = min(per_sample), max(per_sample)
        details["members per sample"] = str(least) if least == most else f"{least} to {most}"
    if others:
        details["other members"] = f"{others:,}, whose names are not KEY.FIELD"
    is_alike = not per_sample or min(per_sample) == len(fields)  # all samples have all fields
    return Contents(
        path,
        "tar (WebDataset)",
        keys,
        path.stat().st_size,
        fields,
        take,
        details,
        text if keys else "",
        stored,
        collate="" if is_alike else LISTS,
    )


def is_plain(path: Path) -> bool:
    """True if a tar file is not compressed as a whole."""
    with open(path, "rb") as file:
        return packing_of(file.read(8)) is None


def split(name: str) -> tuple[str, str]:
    """Return key and field of a member, as the webdataset package does: the first dot after the last slash."""
    folder, _, base = name.rpartition("/")
    key, _, field = base.partition(".")
    return f"{folder}/{key}", field.lower()


def _take(path: Path, wanted: set[int]) -> list[Sample]:
    samples: list[Sample] = []
    number, last = -1, None
    with opened(path) as members:
        while members.advance():
            key, field = split(members.name)
            if not field:
                continue
            if key != last:
                number, last = number + 1, key
                if number > max(wanted, default=-1):
                    break
                if number in wanted:
                    samples.append({})
                    total = SampleSize()
            if number in wanted:
                total.add(f"{path}: sample {key!r}", members.size)
                samples[-1][field] = decoded(field, members.read())
    return samples


# Any: the value of a field.
def decoded(field: str, data: bytes) -> Any:
    """Return the content of a member by its extension; pictures, and what is not understood, as bytes."""
    extension = field.rpartition(".")[2]
    try:
        if extension in _INTEGERS:
            return int(data)
        if extension in _TEXTS:
            return data.decode()
        if extension in ("json", "jsn"):
            return json.loads(data)
        if extension == "npy":
            return decode_npy(data)
    except (ValueError, CorruptSource, RecursionError):
        return data
    return data


def _type(name: str, samples: list[Sample]) -> str:
    types = list(dict.fromkeys(type_text(sample[name]) for sample in samples if name in sample))
    return " or ".join(types)
