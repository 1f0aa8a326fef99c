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

COLUMNS = ("file", "label")
"""The columns of a table of labels."""


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
            f"folder above it: {os.path.dirname(os.path.abspath(root))!r}. Otherwise pass other labels=."
        )
    number_of = {name: number for number, name in enumerate(classes)}
    counts = np.zeros(len(classes), np.int64)
    numbers = np.array([number_of.get(name, -1) for name in tops], np.int64)
    np.add.at(counts, numbers[numbers >= 0], listing.counts[numbers >= 0])
    empty = [classes[number] for number in np.flatnonzero(counts == 0)]
    if empty and not allow_empty:
        raise SourceError(
            f"{len(empty)} of {len(classes)} classes in {root} are without files that extensions= accepts: "
            f"{listed(empty, 5)}. Remove the directory, or pass allow_empty=True to count it as a class nevertheless."
        )
    return Labels(_small(np.repeat(numbers, listing.counts)), classes)


def of_values(values: Sequence[object], option: str, path_of: Callable[[int], str]) -> Labels:
    """Return labels from integers, floats or class names."""
    for place, value in enumerate(values):
        if value is None or (isinstance(value, str) and not value.strip()):
            raise BadOption(
                f"{option} gives {value!r} for {path_of(place)}, which is not a label. Label the file, or pass the "
                "paths that have labels."
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
        f"{option} gives values of type {', '.join(kinds)}. Labels are integers, floats, or names of classes."
    )


def of_function(function: Callable[[str], object], count: int, path_of: Callable[[int], str]) -> Labels:
    """Return the labels that a function returns for each path."""
    values = [function(path_of(place)) for place in range(count)]
    return of_values(values, f"labels={getattr(function, '__name__', function)!r}", path_of)


def of_table(table: str, root: str, paths: Iterable[str], *, skip: bool) -> tuple[Labels, NDArray[np.int64]]:
    """Return the labels in a CSV file, and which files have one."""
    rows = _rows(table, root)
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
            f"{table}, line {line}, names {name!r}, but {len(rows)} of its {count} files are not among those of "
            f"{root}: they are missing, excluded by extensions=, or not relative to this folder."
        )
    if empty and not skip:
        line, name = min(empty)
        raise SourceError(
            f"{table}, line {line}, has no label for {name!r}: the column is empty there, and for {len(empty)} of "
            f'{len(empty) + len(values)} files in all. Fill it in, or pass unlabelled="skip" to skip such files.'
        )
    if without and not skip:
        raise SourceError(
            f"{len(without)} of {len(values) + len(without)} files in {root} are without a line in {table}: "
            f'{listed(without, 5)}. Add the lines, or pass unlabelled="skip" to skip such files.'
        )
    return _known(numbers_in(values), f"labels={table!r}"), np.array(places, np.int64)


def _rows(table: str, root: str) -> dict[str, tuple[str, int]]:
    """Return labels and line numbers by file."""
    rows: dict[str, tuple[str, int]] = {}
    absolute = os.path.abspath(root)
    try:
        with open(table, encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            if not set(COLUMNS).issubset(header):
                raise CorruptSource(
                    f"{table} does not have the columns 'file' and 'label', separated by commas: its first line names "
                    f"{', '.join(map(repr, header)) or 'none'}."
                )
            name_at, label_at = map(header.index, COLUMNS)
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
            f"labels={table!r} is the path of a CSV file that cannot be read: {exc.strerror or exc}. Did you mean "
            'labels="folder", for the names of directories?'
        ) from exc
    return rows


def numbers_in(values: list[str]) -> Sequence[object]:
    """Return the cells of a column as integers or floats if all of them are numbers, else unchanged."""
    for kind in (int, float):
        try:
            return [kind(value) for value in values]
        except ValueError:
            continue
    return values


def _small(values: NDArray[np.int64]) -> NDArray[np.generic]:
    ends = (np.min_scalar_type(values.min(initial=0)), np.min_scalar_type(values.max(initial=0)))
    return values.astype(np.result_type(*ends))
