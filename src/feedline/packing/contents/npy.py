"""What is in .npy and .npz files, and in folders of them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedline.packing.contents.contents import Contents, Field, spread
from feedline.packing.schema import Sample
from feedline.packing.writers import npy


def look(path: Path) -> Contents:
    """Look into an .npy or .npz file, or a folder of .npy files."""
    arrays = _arrays(path)
    fields = tuple(_field(name, array) for name, array in arrays.items())
    lengths = {len(array) for array in arrays.values() if array.ndim}
    count = lengths.pop() if len(lengths) == 1 and all(array.ndim for array in arrays.values()) else None

    def take(wanted: int) -> list[Sample]:
        opened = _arrays(path)
        return [{name: _value(array[row]) for name, array in opened.items()} for row in spread(count or 0, wanted)]

    files = [path] if path.is_file() else sorted(path.glob("*.npy"))
    stored = npy.stored(path) if path.is_dir() else None
    form = "dict" if stored is None else stored["form"]
    names = tuple(arrays)
    given = {"dict": None, "tuple": names, "one": names[0] if names else None}[form]
    text = f"ArrayDataset({str(path)!r}{'' if given is None else f', fields={given!r}'})"
    return Contents(
        path,
        "folder of .npy files" if path.is_dir() else path.suffix,
        count,
        sum(file.stat().st_size for file in files),
        fields,
        take,
        {},
        text if count is not None else "",
        stored,
        len(files),
    )


# Any: arrays of any type.
def _arrays(path: Path) -> Mapping[str, Any]:
    if path.is_dir():
        stored = npy.stored(path)
        order = [field["name"] for field in stored["fields"]] if stored else []
        names = [*order, *sorted(file.stem for file in path.glob("*.npy") if file.stem not in order)]
        return {name: np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in names}
    if zipfile.is_zipfile(path):
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    return {path.stem: np.load(path, mmap_mode="r", allow_pickle=False)}


def _field(name: str, array: Any) -> Field:
    kind = "str" if array.dtype.kind == "U" else array.dtype.name
    shape = ", ".join(map(str, array.shape[1:]))
    note = f"{len(array):,} rows" if array.ndim else "a single value"
    if array.dtype.kind == "U":
        return Field(name, "str", f"{note}, {array.dtype.itemsize // 4} characters each")
    order = "" if array.dtype.isnative else ", of another byte order"
    return Field(name, f"{kind}[{shape}]", f"{note}{order}")


def _value(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.memmap) else value
