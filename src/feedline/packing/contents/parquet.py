"""What is in a Parquet or Arrow file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from feedline._optional import require
from feedline.datasets.parquet.mapped import Mapped
from feedline.datasets.paths import File
from feedline.packing.contents.contents import Contents, Field, spread
from feedline.packing.line import stored_text, unpacked_option
from feedline.packing.schema import Sample
from feedline.packing.writers import parquet


def look(path: Path) -> Contents:
    """Look into a Parquet file, whoever wrote it."""
    pq = require("pyarrow.parquet", extra="parquet", purpose="Looking into Parquet")
    with pq.ParquetFile(path) as file:
        meta, schema = file.metadata, file.schema_arrow
        groups = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
        notes = _notes(meta)
        details = {
            "row groups": f"{len(groups)}, of {min(groups):,} to {max(groups):,} rows" if groups else "0",
            "written by": meta.created_by,
        }
    fields = tuple(Field(field.name, type_of(field.type), notes.get(field.name, "")) for field in schema)

    stored = parquet.stored(path)

    def take(wanted: int) -> list[Sample]:
        starts = np.cumsum([0, *groups])
        samples: list[Sample] = []
        with pq.ParquetFile(path) as opened:
            table, loaded = None, -1
            for row in spread(int(starts[-1]), wanted):
                group = int(np.searchsorted(starts, row, "right")) - 1
                if group != loaded:
                    table, loaded = opened.read_row_group(group), group
                samples.append(_row(table, row - int(starts[group])))
        return samples

    return Contents(
        path,
        "Parquet",
        meta.num_rows,
        path.stat().st_size,
        fields,
        take,
        details,
        stored_text("parquet", str(path), stored, f"ParquetDataset({str(path)!r}{unpacked_option(str(path))})"),
        stored,
    )


def look_at_arrow(path: Path) -> Contents:
    """Look into a file of Arrow (also known as Feather)."""
    pa = require("pyarrow", extra="parquet", purpose="Looking into Arrow")
    mapped = Mapped.of(File.at(str(path)))
    is_file = mapped.batches is None  # and a stream otherwise
    fields = tuple(Field(field.name, type_of(field.type)) for field in mapped.schema)
    count = sum(mapped.batch(number).num_rows for number in range(mapped.count))
    details = {"record batches": mapped.count}

    def take(wanted: int) -> list[Sample]:
        batches = map(mapped.batch, range(mapped.count))
        table = pa.Table.from_batches(batches, mapped.schema)
        return [_row(table, row) for row in spread(count, wanted)]

    text = f"ArrowDataset({str(path)!r})"
    return Contents(
        path, "Arrow" if is_file else "Arrow stream", count, path.stat().st_size, fields, take, details, text
    )


# Any: objects of a library without types.
def type_of(kind: Any) -> str:
    """Name a type of Arrow's as NumPy's are named here."""
    pa = require("pyarrow", extra="parquet", purpose="Looking into Parquet")
    if isinstance(kind, pa.FixedShapeTensorType):
        return f"{type_of(kind.value_type)}[{', '.join(map(str, kind.shape))}]"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "str"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{type_of(kind.value_type)}[different lengths]"
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


def _notes(meta: Any) -> dict[str, str]:
    """Return how columns are stored, by their top-level name, as the first row group says."""
    notes: dict[str, str] = {}
    if meta.num_row_groups:
        group = meta.row_group(0)
        for number in range(group.num_columns):
            column = group.column(number)
            name = column.path_in_schema.partition(".")[0]
            encodings = "/".join(sorted(set(column.encodings) - {"RLE"}))
            notes[name] = f"{column.compression.lower()}, {encodings.lower()}"
    return notes


def _row(table: Any, row: int) -> Sample:
    pa = require("pyarrow", extra="parquet", purpose="Looking into Parquet")
    sample: Sample = {}
    for name in table.column_names:
        cell = table.column(name)[row]
        is_tensor = isinstance(cell.type, pa.FixedShapeTensorType) and cell.is_valid
        sample[name] = cell.to_numpy() if is_tensor else cell.as_py()
        if isinstance(sample[name], list) and sample[name] and isinstance(sample[name][0], (int, float)):
            sample[name] = np.array(sample[name])
    return sample
