"""The line of Python that reads an output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.packing.schema import Schema
from feedline.packing.writers.tar import member_names

CLASSES = {
    "lmdb": "LMDBDataset",
    "hdf5": "HDF5Dataset",
    "tar": "TarDataset",
    "parquet": "ParquetDataset",
    "npy": "ArrayDataset",
}


def dataset_text(format_name: str, place: str, schema: Schema, form: str) -> str:
    """Return the expression that opens an output so that samples have the form they had.

    Args:
        format_name: of the output.
        place: its path, or the pattern that its shards fit.
        schema: of the samples.
        form: of a sample.

    Example:
        >>> dataset_text("hdf5", "train.h5", Schema(()), "dict")
        "HDF5Dataset('train.h5')"
    """
    fields = fields_for(format_name, schema, form)
    options = (", mode='random'" if format_name == "tar" else "") + ("" if fields is None else f", fields={fields!r}")
    return f"{CLASSES[format_name]}({place!r}{options})"


# Any: what JSON keeps.
def stored_text(format_name: str, place: str, stored: Mapping[str, Any] | None, otherwise: str) -> str:
    """Return the expression that opens a store by what was stored in it, and another one if nothing was."""
    if stored is None:
        return otherwise
    return dataset_text(format_name, place, Schema.from_json(stored["fields"]), stored["form"])


# Any: whatever `fields=` of a source takes.
def fields_for(format_name: str, schema: Schema, form: str) -> Any:
    """Return `fields=` for samples of the form they had; None if they have it without."""
    names = schema.names
    if format_name == "tar":
        members = member_names(schema)
        stored = tuple(members[name] for name in names)
        return {"dict": {name: members[name] for name in names}, "tuple": stored, "one": stored[0] if stored else None}[
            form
        ]
    return {"dict": None, "tuple": names, "one": names[0] if names else None}[form]


def loader_line(format_name: str, place: str, schema: Schema, form: str) -> str:
    """Return the line that loads an output."""
    dataset = dataset_text(format_name, place, schema, form)
    return f"loader = feedline.Loader(feedline.datasets.{dataset}, batch_size=32, shuffle=True, workers=4)"
