"""What is in a table in plain text: comma-separated values, JSON lines."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedline.datasets.csv.dataset import ENDINGS, PACKED, CSVDataset
from feedline.datasets.csv.rows import delimiter_of
from feedline.datasets.paths import found_files
from feedline.errors import CorruptSource
from feedline.failures import words
from feedline.packing.contents import folder, parquet
from feedline.packing.contents.contents import Contents, Field, fields_of, spread
from feedline.packing.folders import names_files
from feedline.packing.line import LISTS
from feedline.packing.schema import Sample

_AT_ONCE = 4096
"""Rows of CSV that are read at a time, in order."""
_TYPED = 1000
"""Rows of JSON from which the types of fields are told."""


def look_at_csv(path: Path) -> Contents:
    """Look into a table of comma-separated values, or those that fit a pattern; if it names files, at these."""
    source, delimiter = str(path), None
    if path.is_file() and not source.lower().endswith(PACKED):
        if names_files(path):
            return folder.look_at_table(path)
        delimiter = _delimiter(path)
    files = found_files(source, ENDINGS)
    dataset = CSVDataset(source, delimiter=delimiter)
    count, types = len(dataset), dataset.column_types
    empty, has_none = Counter[str](), False
    for first in range(0, count, _AT_ONCE):
        for sample in dataset.__getitems__(range(first, min(first + _AT_ONCE, count))):
            missing = [name for name, value in sample.items() if value is None or value == "" or value != value]
            empty.update(missing)
            has_none = has_none or any(sample[name] is None for name in missing)
    fields = tuple(
        Field(name, parquet.type_of(kind), f"empty in {empty[name]:,} rows" if empty[name] else "")
        for name, kind in types.items()
    )

    def take(wanted: int) -> list[Sample]:
        return [dataset[row] for row in spread(count, wanted)]

    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    options = "" if delimiter in (None, usual) else f", delimiter={delimiter!r}"
    return Contents(
        path,
        "CSV table" if len(files) == 1 else "CSV tables",
        count,
        sum(Path(file).stat().st_size for file in files),
        fields,
        take,
        {},
        f"CSVDataset({source!r}{options})",
        file_count=len(files),
        collate=LISTS if has_none else "",
    )


def look_at_json(path: Path) -> Contents:
    """Look into a file of JSON lines, or of one JSON list."""
    kind = "JSON lines"
    lines = _json_lines(path)
    try:
        next(lines, None)
        is_document = False
    except CorruptSource:
        is_document = True  # the first line is no JSON: all of them together may be
    if is_document or next(lines, lines) is lines:  # which no value is
        is_document = True
        document = _json_document(path)
        rows = document if isinstance(document, list) else [document]
        kind = "JSON list" if isinstance(document, list) else "JSON document"
        count, typed = len(rows), [_sample(row) for row in rows[:_TYPED]]
    else:
        typed = [_sample(row) for row in itertools.islice(_json_lines(path), _TYPED)]
        count = sum(1 for _ in _json_lines(path))

    def take(wanted: int) -> list[Sample]:
        chosen = set(spread(count, wanted))
        found = rows if is_document else _json_lines(path)
        return [_sample(row) for number, row in enumerate(found) if number in chosen]

    return Contents(path, kind, count, path.stat().st_size, fields_of(typed), take, _advice())


def _advice() -> dict[str, Any]:
    return {"to load it": "read it into a dict of arrays for ArrayDataset, or write it as Parquet for ParquetDataset"}


def _delimiter(path: Path) -> str:
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        return delimiter_of(file.readline())


# Any, throughout: what JSON holds.
def _json_lines(path: Path) -> Iterator[Any]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as exc:
                raise CorruptSource(f"{path}, line {number}, is no JSON: {words(exc)}.") from exc


def _json_document(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as exc:
        raise CorruptSource(
            f"{path} is neither JSON with a value on each line nor one document of JSON: {words(exc)}."
        ) from exc


def _sample(row: Any) -> Sample:
    return row if isinstance(row, dict) else {"value": row}
