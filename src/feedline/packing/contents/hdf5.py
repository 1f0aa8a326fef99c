"""What is in an HDF5 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feedline._optional import require
from feedline.packing.contents.contents import Contents, Field, spread
from feedline.packing.schema import Sample
from feedline.packing.writers import hdf5


def look(path: Path) -> Contents:
    """Look into an HDF5 file, whoever wrote it."""
    h5py = require("h5py", extra="hdf5", purpose="Looking into HDF5")
    with h5py.File(path, "r") as store:
        found: dict[str, Any] = {}
        store.visititems(lambda name, item: found.__setitem__(name, item) if isinstance(item, h5py.Dataset) else None)
        fields = tuple(_field(name, dataset) for name, dataset in found.items())
        lengths = {len(dataset) for dataset in found.values() if dataset.shape}
        details = {"attributes": {name: str(value)[:200] for name, value in store.attrs.items() if name != hdf5.META}}
    count = lengths.pop() if len(lengths) == 1 else None
    names = [field.name for field in fields]
    if count is None and len(lengths) > 1:
        details["lengths"] = {
            "differ": "the datasets have different numbers of rows, so it is not known what a sample is"
        }

    def take(wanted: int) -> list[Sample]:
        with h5py.File(path, "r") as opened:
            rows = spread(count or 0, wanted)
            return [{name: _value(opened[name], row) for name in names if opened[name].shape} for row in rows]

    return Contents(
        path,
        "HDF5",
        count,
        path.stat().st_size,
        fields,
        take,
        {name: value for name, value in details.items() if value},
        f"HDF5Dataset({str(path)!r})" if count is not None else "",
        hdf5.stored(path),
    )


# Any: objects of a library without types.
def _field(name: str, dataset: Any) -> Field:
    h5py = require("h5py", extra="hdf5", purpose="Looking into HDF5")
    shape = ", ".join(map(str, dataset.shape[1:])) if dataset.shape else ""
    if h5py.check_string_dtype(dataset.dtype) is not None:
        kind = "str"
    elif dataset.attrs.get(hdf5.META) == "bytes":
        kind = "bytes"
    elif h5py.check_vlen_dtype(dataset.dtype) is not None:
        kind = f"{h5py.check_vlen_dtype(dataset.dtype).name}[different lengths]"
    else:
        kind = f"{dataset.dtype}[{shape}]"
    notes = [f"{len(dataset):,} rows" if dataset.shape else "a single value"]
    notes.append("contiguous" if dataset.chunks is None else f"chunks of {' x '.join(map(str, dataset.chunks))}")
    if dataset.compression:
        notes.append(dataset.compression)
    return Field(name, kind, ", ".join(notes))


def _value(dataset: Any, row: int) -> Any:
    h5py = require("h5py", extra="hdf5", purpose="Looking into HDF5")
    value = dataset[row]
    if h5py.check_string_dtype(dataset.dtype) is not None and isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.tobytes() if dataset.attrs.get(hdf5.META) == "bytes" else value
