"""Writes line files for tests: plain, or compressed as one unit or as many."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import zstandard
from hypothesis import strategies as st

PACKS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
FORMS = [(ending, is_split) for ending in PACKS for is_split in (False, True) if ending or not is_split]
"""Suffixes, and whether the content is split into many units."""

# Any, throughout: values of any kind.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
BETWEEN = st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n", "\n\r\n"])
"""Line endings of JSON lines, some followed by blank lines."""


def packed(content: bytes, ending: str, cuts: Iterable[int] = ()) -> bytes:
    """Compress content, split into units at `cuts`."""
    places = [0, *sorted({cut % (len(content) + 1) for cut in cuts}), len(content)]
    parts = [content[start:stop] for start, stop in itertools.pairwise(places)]
    return b"".join(map(PACKS[ending], parts))


def write(path: Path, content: bytes, *, is_split: bool = False) -> Path:
    """Write content in the format that the suffix of the name indicates."""
    cuts = range(0, len(content), max(1, len(content) // 13)) if is_split else ()
    ending = path.suffix if path.suffix in PACKS else ""
    path.write_bytes(packed(content, ending, cuts))
    return path


def rows(count: int) -> list[dict[str, Any]]:
    return [{"number": i, "text": f"ä{i}" * (i % 7), "inner": {"a": [i, None]}} for i in range(count)]


def lines_of(values: Iterable[object]) -> bytes:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()


def all_of(stream: Any) -> list[Any]:
    """Read a stream to its end with take() instead of one sample at a time."""
    samples, iterator = [], iter(stream)
    while made := iterator.take(7):
        samples += made
    return samples


def touch_later(path: Path) -> None:
    """Move the modification time of a file."""
    now = path.stat()
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns + 10**9))


# Any: an iterator of a stream, and its samples.
def taken(iterator: Any, count: int) -> list[Any]:
    """Take `count` samples, which may come in several parts."""
    found: list[Any] = []
    while len(found) < count and (made := iterator.take(count - len(found))):
        found += made
    return found
