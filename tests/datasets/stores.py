"""Small files of many formats."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import zstandard

COUNT = 3
"""Samples per file."""


def tar(path: Path, number: int) -> None:
    out = io.BytesIO()
    mode: Any = "w" if path.suffix in (".tar", ".zst") else "w:gz"
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for key in range(COUNT):
            info = tarfile.TarInfo(f"key{number}{key}.cls")
            info.size = 1
            archive.addfile(info, io.BytesIO(b"%d" % key))
    data = out.getvalue()
    path.write_bytes(zstandard.compress(data) if path.suffix == ".zst" else data)


def hdf5(path: Path, number: int) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(COUNT)


MAKERS: dict[str, Callable[[Path, int], object]] = {
    ".tar": tar,
    ".tar.gz": tar,
    ".tgz": tar,
    ".TGZ": tar,
    ".tar.zst": tar,
    ".h5": hdf5,
    ".hdf5": hdf5,
    ".parquet": lambda path, number: pq.write_table(pa.table({"x": range(COUNT)}), path),
    ".arrow": lambda path, number: feather.write_feather(pa.table({"x": range(COUNT)}), str(path)),
}
"""A function for each suffix that writes a file to a path; the number makes the files of a folder different."""
