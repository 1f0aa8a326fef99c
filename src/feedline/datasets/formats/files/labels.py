"""The labels of files: from their folder, a table, a function, or a list."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.files.listing import Listing
from feedline.datasets.framework.form import listed
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.system.failures import words

_SEPARATORS = (";", "\t", "|")
"""Column separators of tables that do not use commas."""


@dataclass(frozen=True)
class Labels:
    """A number for each file."""

    values: NDArray[np.generic]
    """In the smallest type that holds them."""
    classes: list[str] | None
    """The class names that the numbers stand for; None if they are just numbers."""


def of_folders(listing: Listing, root: str, *, allow_empty: bool) -> Labels:
    """Label each file with its top-level directory in the folder, at any depth."""
    tops = [path.partition("/")[0] for path in listing.directories]
    classes = sorted(set(tops) - {""})
    if not classes:
        raise SourceError(
            f"{root} has no directories, so its files have no classes. If it is the directory of one class, pass the "
            f"folder above it: {os.path.dirname(os.path.abspath(root))!r}. Otherwise put the files of each class into "
            'a directory of their own, or pass labels="labels.csv", a function, or None for files without labels.'
        )
    number_of = {name: number for number, name in enumerate(classes)}
    counts = np.zeros(len(classes), np.int64)
    numbers = np.array([number_of.get(name, -1) for name in tops], np.int64)
    np.add.at(counts, numbers[numbers >= 0], listing.counts[numbers >= 0])
    empty = [classes[number] for number in np.flatnonzero(counts == 0)]
    if empty and not allow_empty:
        raise SourceError(
            f"{listed(empty, 5)} of {len(classes)} classes in {root} {_has(empty)} no files with the requested "
            "endings. Remove the directory, change extensions=, or pass allow_empty=True to count it as a class "
            "nevertheless."
        )
    return Labels(_small(np.repeat(numbers, listing.counts)), classes)


def of_values(values: Sequence[object], option: str, path_of: Callable[[int], str]) -> Labels:
    """Return labels from integers, floats or class names."""
    for place, value in enumerate(values):
        if value is None or (isinstance(value, str) and not value.strip()):
            raise BadOption(
                f"{option} gives {value!r} for {path_of(place)}, which is not a label. Label the file, or exclude it "
                "with extensions= or pattern=, or by passing only the paths that have labels."
            )
    return _known(values, option)


# Any: labels of any type, which this finds out.
def _known(values: Sequence[Any], option: str) -> Labels:
    if all(isinstance(value, (bool, int, np.integer, np.bool_)) for value in values):
        return Labels(_small(np.array(values, np.int64)), None)
    if all(isinstance(value, (int, float, np.integer, np.floating)) for value in values):
        return Labels(np.array(values, np.float64), None)
    if all(isinstance(value, str) for value in values):
        classes = sorted(set(values))
        number_of = {name: number for number, name in enumerate(classes)}
        return Labels(_small(np.fromiter((number_of[name] for name in values), np.int64, len(values))), classes)
    kinds = sorted({type(value).__name__ for value in values})
    raise BadOption(
        f"{option} gives values of type {', '.join(kinds)}. A label is an integer, a float, or the name of a class, "
        "the same for all files."
    )


def of_function(function: Callable[[str], object], count: int, path_of: Callable[[int], str]) -> Labels:
    """Return the labels that a function returns for each path."""
    values = [function(path_of(place)) for place in range(count)]
    return of_values(values, f"labels={getattr(function, '__name__', function)!r}", path_of)


def of_table(
    table: str, columns: tuple[str, str], root: str, paths: Iterable[str], *, skip: bool
) -> tuple[Labels, NDArray[np.int64]]:
    """Return the labels in a CSV file, and which files have one."""
    rows = _rows(table, columns, root)
    values: list[str] = []
    places: list[int] = []
    without: list[str] = []
    empty: list[tuple[int, str]] = []
    for place, path in enumerate(paths):
        row = rows.pop(path, None)
        if row is None:
            without.append(path)
        elif row[0].strip():
            values.append(row[0])
            places.append(place)
        else:
            empty.append((row[1], path))
    if rows:
        line, name = min((line, name) for name, (_, line) in rows.items())
        count = len(rows) + len(values) + len(empty)
        raise CorruptSource(
            f"{table}, line {line}, names {name!r}, but {len(rows)} of its {count} files are not "
            f"among those of {root}. They are missing, have endings that extensions= excludes, or are relative to "
            "another folder: the column must contain paths relative to the folder, including the ending."
        )
    if empty and not skip:
        line, name = min(empty)
        raise SourceError(
            f"{table}, line {line}, has no label for {name!r}: the column is empty there, and for {len(empty)} of "
            f'{len(empty) + len(values)} files in all. Fill it in, or pass unlabelled="skip" to skip such files.'
        )
    if without and not skip:
        raise SourceError(
            f"{listed(without, 5)} of {len(values) + len(without)} files in {root} {_has(without)} no line in {table}. "
            'Add the lines, or pass unlabelled="skip" to skip such files.'
        )
    return _known(numbers_in(values), f"labels={table!r}"), np.array(places, np.int64)


def _rows(table: str, columns: tuple[str, str], root: str) -> dict[str, tuple[str, int]]:
    """Return labels and line numbers by file."""
    rows: dict[str, tuple[str, int]] = {}
    absolute = os.path.abspath(root)
    try:
        with open(table, encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            missing = [name for name in columns if name not in header]
            if missing:
                raise CorruptSource(_no_column(table, missing[0], header))
            name_at, label_at = map(header.index, columns)
            for line in lines:
                if not line:
                    continue
                if len(line) <= max(name_at, label_at):
                    raise CorruptSource(f"{table}, line {lines.line_num}, has {len(line)} of {len(header)} columns.")
                name = os.path.relpath(line[name_at], absolute) if os.path.isabs(line[name_at]) else line[name_at]
                name = os.path.normpath(name).replace(os.sep, "/")
                if name in rows:
                    raise CorruptSource(
                        f"{table} names {name!r} twice, in lines {rows[name][1]} and {lines.line_num}. Remove one."
                    )
                rows[name] = line[label_at], lines.line_num
    except (UnicodeDecodeError, csv.Error) as exc:
        raise CorruptSource(f"{table} is not a CSV file in UTF-8: {words(exc)}.") from exc
    except OSError as exc:
        if isinstance(exc, SourceError):
            raise
        raise SourceError(
            f"labels={table!r} is the path of a CSV file that cannot be read: {exc.strerror or exc}. Correct the "
            'path; or pass labels="folder" for the names of directories, a function that takes a path, or None.'
        ) from exc
    return rows


def _no_column(table: str, missing: str, header: list[str]) -> str:
    found = f"{table} has no column {missing!r}: its first line names {', '.join(map(repr, header)) or 'none'}."
    other = next((one for one in _SEPARATORS if len(header) == 1 and one in header[0]), None)
    if other is not None:
        return (
            f"{found} Its columns seem to be separated by {other!r}, but only commas are supported: save it with "
            "commas, or read it yourself and pass labels= a function that takes a path."
        )
    return f"{found} Name the columns there, or pass their names: labels=(path, file column, label column)."


def numbers_in(values: list[str]) -> Sequence[object]:
    """Return the cells of a column as integers or floats if all of them are numbers, else unchanged."""
    for kind in (int, float):
        try:
            return [kind(value) for value in values]
        except ValueError:
            continue
    return values


def _has(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _small(values: NDArray[np.int64]) -> NDArray[np.generic]:
    ends = (np.min_scalar_type(values.min(initial=0)), np.min_scalar_type(values.max(initial=0)))
    return values.astype(np.result_type(*ends))
