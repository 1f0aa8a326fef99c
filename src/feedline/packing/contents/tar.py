"""What is in a tar file, by the rules of the webdataset package."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from feedline._optional import require
from feedline.errors import CorruptSource
from feedline.failures import words
from feedline.packing.contents.contents import Contents, Field, spread, type_text
from feedline.packing.line import LISTS, stored_text
from feedline.packing.schema import Sample
from feedline.packing.writers import tar

_ZSTD = b"\x28\xb5\x2f\xfd"
_INTEGERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_MOST_FIRSTS = 32
"""Samples that are read because they are the first with some field."""
_TEXTS = ("txt", "text", "transcript")


@contextmanager
def opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar file, compressed or not."""
    with ExitStack() as stack:
        file = stack.enter_context(open(path, "rb"))
        start = file.read(4)
        file.seek(0)
        if start == _ZSTD:
            zstandard = require("zstandard", extra="tar", purpose="Looking into tar files with zstd")
            stream = stack.enter_context(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
            yield stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
        else:
            yield stack.enter_context(tarfile.open(fileobj=file, mode="r:gz" if start[:2] == b"\x1f\x8b" else "r:"))


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
        with opened(path) as archive:
            stored = _stored(archive)
            for member in archive:
                tar.forget_members(archive)
                key, field = split(member.name)
                if not member.isfile() or not field:
                    others += 1
                    continue
                if key != last:
                    per_sample.append(0)
                per_sample[-1] += 1
                last = key
                firsts.setdefault(field, len(per_sample) - 1)
                counts[field] += 1
                sizes[field] += member.size
    except (tarfile.TarError, EOFError, OSError) as exc:
        what = "is not a whole tar file" if is_plain(path) else "is compressed, and no tar file, or not a whole one"
        raise CorruptSource(f"{path} {what}: {words(exc)}.") from exc
    keys = len(per_sample)

    def take(wanted: int) -> list[Sample]:
        return _take(path, set(spread(keys, wanted)))

    found = _take(path, {*spread(keys, 4), *itertools.islice(firsts.values(), _MOST_FIRSTS)})
    fields = tuple(
        Field(name, _type(name, found), counts=(("members", count), ("bytes", sizes[name])))
        for name, count in counts.items()
    )
    text = stored_text("tar", str(path), stored, f"TarDataset({str(path)!r}, mode='random')")
    if not is_plain(path):
        text = text.replace("mode='random'", "mode='stream'")
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
        start = file.read(4)
    return start != _ZSTD and start[:2] != b"\x1f\x8b"


def split(name: str) -> tuple[str, str]:
    """Return key and field of a member, as the webdataset package does: the first dot after the last slash."""
    folder, _, base = name.rpartition("/")
    key, _, field = base.partition(".")
    return f"{folder}/{key}", field.lower()


def _take(path: Path, wanted: set[int]) -> list[Sample]:
    samples: list[Sample] = []
    number, last = -1, None
    with opened(path) as archive:
        for member in archive:
            tar.forget_members(archive)
            key, field = split(member.name)
            if not member.isfile() or not field:
                continue
            if key != last:
                number, last = number + 1, key
                if number > max(wanted, default=-1):
                    break
                if number in wanted:
                    samples.append({})
            if number in wanted:
                content = archive.extractfile(member)
                samples[-1][field] = decoded(field, b"" if content is None else content.read())
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
            return np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError:
        return data
    return data


def _type(name: str, samples: list[Sample]) -> str:
    types = list(dict.fromkeys(type_text(sample[name]) for sample in samples if name in sample))
    return " or ".join(types)


def _stored(archive: tarfile.TarFile) -> dict[str, Any] | None:
    # Opening has read the first header. Asking for it fails in Python 3.10 if there is none.
    return tar.comment_in(archive.pax_headers)
