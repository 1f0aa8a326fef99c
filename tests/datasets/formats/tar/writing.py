"""Writes shards for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def tar_bytes(files: Iterable[tuple[str, bytes]], **options: Any) -> bytes:
    """Return an archive of files in this order, including duplicates."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **options) as file:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def numbered(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    """Return the files of samples with a number, a text, and a text of varying length."""
    return [
        file
        for number in range(first, first + count)
        for file in (
            (f"{number:06d}.cls", b"%d" % number),
            (f"{number:06d}.txt", f"sämple {number}".encode()),
            (f"{number:06d}.bin", bytes([number % 256]) * (number * 37 % 1500)),
        )
    ]


def write_shards(folder: Path, sizes: Iterable[int]) -> list[str]:
    """Write shards of numbered samples with the given sizes, and return their paths."""
    paths, first = [], 0
    for place, count in enumerate(sizes):
        path = folder / f"shard-{place:03d}.tar"
        path.write_bytes(tar_bytes(numbered(count, first)))
        paths.append(str(path))
        first += count
    return paths
