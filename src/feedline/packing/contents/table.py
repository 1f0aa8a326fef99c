"""What is in a table in plain text: comma-separated values, JSON lines."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedline.datasets.csv.rows import delimiter_of
from feedline.errors import CorruptSource, SourceError
from feedline.failures import words
from feedline.packing.contents import folder
from feedline.packing.contents.contents import Contents, Field, fields_of, spread
from feedline.packing.folders import names_files
from feedline.packing.line import LISTS
from feedline.packing.schema import Sample

_TYPED = 1000
"""Rows of JSON from which the types of fields are told."""


def look_at_csv(path: Path) -> Contents:
    """Look into a table of comma-separated values; if it names files, at what is in these."""
    rows = _csv_rows(path)
    header = next(rows, None)
    if header is None:
        raise SourceError(f"{path} is empty: not even a first line that names columns.")
    if names_files(path):
        return folder.look_at_table(path)
    kinds, empty, count = ["int"] * len(header), [0] * len(header), 0
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise CorruptSource(
                f"{path}, row {number}, has {len(row)} cells, but the first line names {len(header)} columns. "
                "Commas and line ends inside of a cell need quotes around it."
            )
        count += 1
        for column, cell in enumerate(row):
            empty[column] += not cell
            kinds[column] = _kind(cell, kinds[column]) if cell else kinds[column]
    fields = tuple(
        Field(name, "str" if blank == count else kind, f"empty in {blank:,} rows" if blank else "")
        for name, kind, blank in zip(header, kinds, empty, strict=True)
    )

    def take(wanted: int) -> list[Sample]:
        chosen = set(spread(count, wanted))
        rows = itertools.islice(_csv_rows(path), 1, None)
        return [dict(zip(header, row, strict=False)) for number, row in enumerate(rows) if number in chosen]

    delimiter = _delimiter(path)
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    options = "" if delimiter == usual else f", delimiter={delimiter!r}"
    # Of missing values only integers are None: floats are NaN, and strings empty.
    has_none = any(kind == "int" and 0 < blank < count for kind, blank in zip(kinds, empty, strict=True))
    text = f"CSVDataset({str(path)!r}{options})"
    return Contents(
        path, "CSV table", count, path.stat().st_size, fields, take, {}, text, collate=LISTS if has_none else ""
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


def _csv_rows(path: Path) -> Iterator[list[str]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield from (row for row in csv.reader(file, delimiter=_delimiter(path)) if row)
    except (UnicodeDecodeError, csv.Error) as exc:
        raise CorruptSource(f"{path} is no table of comma-separated values in UTF-8: {words(exc)}.") from exc


def _delimiter(path: Path) -> str:
    with open(path, encoding="utf-8-sig") as file:
        return delimiter_of(file.readline())


def _kind(cell: str, kind: str) -> str:
    for one, read in (("int", int), ("float", float)):
        if one == "int" and kind != "int":
            continue
        if kind == "str":
            break
        try:
            read(cell)
            return one
        except ValueError:
            continue
    return "str"


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
