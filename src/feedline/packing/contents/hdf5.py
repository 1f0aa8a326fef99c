"""What is in an HDF5 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feedline._optional import require
from feedline.datasets.hdf5.part import leads_out
from feedline.datasets.packed_facts import in_packed_order
from feedline.packing.contents.contents import Contents, Field, spread
from feedline.packing.contents.npy import type_of
from feedline.packing.line import stored_text
from feedline.packing.schema import Sample
from feedline.packing.writers import hdf5


def look(path: Path) -> Contents:
    """Look into an HDF5 file, whoever wrote it."""
    h5py = require("h5py", extra="hdf5", purpose="Looking into HDF5")
    with h5py.File(path, "r") as store:
        found: dict[str, Any] = {}
        store.visititems(lambda name, item: found.__setitem__(name, item) if isinstance(item, h5py.Dataset) else None)
        elsewhere = [name for name in found if leads_out(store, name)]
        found = {name: found[name] for name in in_packed_order(found, store.attrs.get(hdf5.META))}
        fields = tuple(_field(name, dataset) for name, dataset in found.items())
        lengths: dict[int, list[str]] = {}
        for name, dataset in found.items():
            if dataset.shape and name not in elsewhere:
                lengths.setdefault(len(dataset), []).append(name)
        compound = {name for name, dataset in found.items() if dataset.dtype.names}
        details: dict[str, Any] = {
            "attributes": {name: str(value)[:200] for name, value in store.attrs.items() if name != hdf5.META}
        }
    if elsewhere:
        details["in other files"] = f"the data of {', '.join(elsewhere)}, which is not shown"
    stored = hdf5.stored(path)
    # Of several lengths, the one that most datasets have: which of them are samples, a file does not say.
    length, names = max(lengths.items(), key=lambda item: (len(item[1]), item[0]), default=(0, []))
    count = length if len(lengths) == 1 else None
    if not fields:
        details["empty"] = "there are no datasets in it"
    elif count is None:
        details["rows"] = {f"{rows:,}": ", ".join(listed) for rows, listed in lengths.items()} or "single values only"
    if len(lengths) > 1:
        details["shown"] = f"samples of the datasets with {length:,} rows: which of them are samples is not known"
    loadable = [name for name in names if name not in compound]
    given = "" if len(loadable) == len(fields) else f", fields={loadable!r}"

    def take(wanted: int) -> list[Sample]:
        with h5py.File(path, "r") as opened:
            return [{name: _value(opened[name], row) for name in names} for row in spread(length, wanted)]

    return Contents(
        path,
        "HDF5",
        count,
        path.stat().st_size,
        fields,
        take,
        {name: value for name, value in details.items() if value},
        stored_text("hdf5", str(path), stored, f"HDF5Dataset({str(path)!r}{given})" if loadable else ""),
        stored,
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
        kind = f"{type_of(dataset.dtype)}[{shape}]"
    if dataset.shape is None:
        return Field(name, kind, "no value")
    notes = [] if dataset.shape else ["a single value"]
    notes.append("contiguous" if dataset.chunks is None else f"chunks of {' x '.join(map(str, dataset.chunks))}")
    if dataset.compression:
        notes.append(dataset.compression)
    return Field(name, kind, ", ".join(notes), (("rows", len(dataset)),) if dataset.shape else ())


def _value(dataset: Any, row: int) -> Any:
    h5py = require("h5py", extra="hdf5", purpose="Looking into HDF5")
    value = dataset[row]
    if h5py.check_string_dtype(dataset.dtype) is not None and isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.tobytes() if dataset.attrs.get(hdf5.META) == "bytes" else value
