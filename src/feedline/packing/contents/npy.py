"""What is in .npy and .npz files, and in folders of them: what their headers say, and a few rows."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedline.datasets.array_file import opened_zip, read_header
from feedline.datasets.tar.arrays import decode_npy
from feedline.errors import SourceError
from feedline.packing.contents.contents import Contents, Field, spread
from feedline.packing.line import stored_text
from feedline.packing.schema import Sample
from feedline.packing.writers import npy
from feedline.sizes import check_size, most_bytes


# Any, throughout: arrays of any type.
@dataclass(frozen=True)
class _Array:
    """An array, as its header says."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[], Any]
    is_mapped: bool = True
    """False if it has to be unpacked as a whole."""


def look(path: Path) -> Contents:
    """Look into an .npy or .npz file, or a folder of .npy files."""
    arrays = _arrays(path)
    plain = [array for array in arrays if not array.dtype.hasobject]
    lengths = {array.shape[:1] for array in arrays}
    count = arrays[0].shape[0] if len(lengths) == 1 and arrays[0].shape else None

    def take(wanted: int) -> list[Sample]:
        rows = spread(count or 0, wanted) if plain else []
        samples: list[Sample] = [{} for _ in rows]
        for array in plain:
            opened = array.load()
            for sample, row in zip(samples, rows, strict=True):
                sample[array.name] = _value(opened[row])
        return samples

    details: dict[str, Any] = {}
    if count is None and len(arrays) > 1:
        details["lengths"] = "the arrays have different numbers of rows, so it is not known what a sample is"
    if len(plain) < len(arrays):
        names = ", ".join(array.name for array in arrays if array.dtype.hasobject)
        details["not read"] = f"{names}: pickled Python objects, and reading them runs whatever code is in the file"
    files = [path] if path.is_file() else sorted(path.glob("*.npy"))
    stored = npy.stored(path) if path.is_dir() else None
    text = stored_text("npy", str(path), stored, _text(path, arrays))
    return Contents(
        path,
        "folder of .npy files" if path.is_dir() else path.suffix or ".npy",
        count,
        sum(file.stat().st_size for file in files),
        tuple(map(_field, arrays)),
        take,
        details,
        text if count is not None else "",
        stored,
        len(files),
    )


def _text(path: Path, arrays: list[_Array]) -> str:
    """Return the expression that opens arrays; "" if there is none."""
    if any(array.dtype.hasobject or not array.dtype.isnative for array in arrays):
        return ""
    if any(array.dtype.names for array in arrays):
        if not path.is_file() or zipfile.is_zipfile(path):
            return ""
        load = f"numpy.load({str(path)!r}, mmap_mode='r')"
        return f"ArrayDataset({{name: {load}[name] for name in {arrays[0].dtype.names}}})"
    if not all(array.is_mapped for array in arrays):
        return f"ArrayDataset(dict(numpy.load({str(path)!r})))"
    return f"ArrayDataset({str(path)!r})"


def _arrays(path: Path) -> list[_Array]:
    if path.is_dir():
        stored = npy.stored(path)
        order = [field["name"] for field in stored["fields"]] if stored else []
        names = [*order, *sorted(file.stem for file in path.glob("*.npy") if file.stem not in order)]
        return [_of_file(name, path / f"{name}.npy") for name in names]
    if not zipfile.is_zipfile(path):
        return [_of_file(path.stem, path)]
    with open(path, "rb") as file, opened_zip(file) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        if not members:
            holds = repr(archive.namelist()[0]) if archive.namelist() else "nothing"
            raise SourceError(f"{path} is a zip archive that holds {holds} and no arrays, as numpy.savez writes them.")
        return [_of_member(path, archive, info) for info in members]


def _of_file(name: str, path: Path) -> _Array:
    with open(path, "rb") as file:
        shape, dtype = _header(file)
        held = os.fstat(file.fileno()).st_size - file.tell()
    if not dtype.hasobject:
        check_size(str(path), math.prod(shape) * dtype.itemsize, held=held)

    def load() -> Any:
        return np.load(path, mmap_mode="r" if 0 not in shape else None, allow_pickle=False)

    return _Array(name, shape, dtype, load)


def _of_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Array:
    with archive.open(info) as file:
        shape, dtype = _header(file)

    def load() -> Any:
        check_size(f"{info.filename!r} of {path}", info.file_size, limit=most_bytes())
        with zipfile.ZipFile(path) as opened:
            return decode_npy(opened.read(info))

    return _Array(
        info.filename.removesuffix(".npy"), shape, dtype, load, is_mapped=info.compress_type == zipfile.ZIP_STORED
    )


# Any: files, and members of archives.
def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    _, shape, _, dtype = read_header(file)
    return shape, dtype


def _field(array: _Array) -> Field:
    note = f"{array.shape[0]:,} rows" if array.shape else "a single value"
    if array.dtype.kind == "U":
        return Field(array.name, "str", f"{note}, {array.dtype.itemsize // 4} characters each")
    order = "" if array.dtype.isnative else ", of another byte order"
    return Field(array.name, f"{type_of(array.dtype)}[{', '.join(map(str, array.shape[1:]))}]", f"{note}{order}")


def type_of(dtype: np.dtype[Any]) -> str:
    """Name a type; of a structured one, what it consists of.

    Example:
        >>> type_of(np.dtype([("x", "f4", (2,)), ("y", "i8")])), type_of(np.dtype("u1"))
        ('(x: float32[2], y: int64)', 'uint8')
    """
    if dtype.names is None:
        return f"{dtype.base.name}[{', '.join(map(str, dtype.shape))}]" if dtype.shape else dtype.name
    return f"({', '.join(f'{name}: {type_of(dtype[name])}' for name in dtype.names)})"


def _value(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.memmap) else value
